// The matrix instructions of a warp. Fragments lie as the PTX manual says: with e elements in a register of 32 bits and
// thread (g, t) = (lane / 4, lane % 4), element i of register r is
//   of A: row g + 8 (r % 2), column e t + 4 e (r / 2) + i;  of B: row e t + 4 e r + i, column g;
//   of C and D: row g + 8 (i / 2), column 2 t + i % 2.
#pragma once

extern "C" void emu_check_read(const void* address, uint32_t bytes, const void* pc);

struct emu_f16 { using sum = float; static constexpr int bits = 16; static float decode(uint32_t x) { return emu_half_to_float(uint16_t(x)); } };
struct emu_bf16 { using sum = float; static constexpr int bits = 16; static float decode(uint32_t x) { return emu_bfloat_to_float(uint16_t(x)); } };
struct emu_tf32 { using sum = float; static constexpr int bits = 32; static float decode(uint32_t x) { return emu_bits_float(x & 0xffffe000); } };
struct emu_s8 { using sum = int; static constexpr int bits = 8; static int decode(uint32_t x) { return int8_t(x); } };
struct emu_u8 { using sum = int; static constexpr int bits = 8; static int decode(uint32_t x) { return uint8_t(x); } };
struct emu_e4m3 { using sum = float; static constexpr int bits = 8; static float decode(uint32_t x) { return emu_small_to_float<4, 3, 7, false>(uint8_t(x)); } };
struct emu_e5m2 { using sum = float; static constexpr int bits = 8; static float decode(uint32_t x) { return emu_small_to_float<5, 2, 15, true>(uint8_t(x)); } };

template <class A, class B, int K>
struct emu_fragments {
  static constexpr int per_register = 32 / A::bits, b_count = K / (4 * per_register), a_count = 2 * b_count;
  using Sum = typename A::sum;
  uint32_t a[a_count], b[b_count];
  Sum c[4], d[4];
};

template <class A, class B, int K>
EMU_UNCHECKED inline void emu_combine_fragments(void** lanes, uint32_t) {
  using Fragments = emu_fragments<A, B, K>;
  using Sum = typename A::sum;
  constexpr int e = Fragments::per_register;
  static Sum left[16][K], right[8][K];
  for (int lane = 0; lane < 32; ++lane) {
    auto& mine = *static_cast<Fragments*>(lanes[lane]);
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < e; ++i) {
      for (int r = 0; r < Fragments::a_count; ++r)
        left[g + 8 * (r % 2)][e * t + 4 * e * (r / 2) + i] = A::decode(mine.a[r] >> (A::bits % 32) * i);
      for (int r = 0; r < Fragments::b_count; ++r)
        right[g][e * t + 4 * e * r + i] = B::decode(mine.b[r] >> (B::bits % 32) * i);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto& mine = *static_cast<Fragments*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const Sum *row = left[lane / 4 + 8 * (i / 2)], *column = right[2 * (lane % 4) + i % 2];
      if constexpr (std::is_same_v<Sum, float>) {
        double total = mine.c[i];
        for (int k = 0; k < K; ++k) total += double(row[k]) * double(column[k]);
        mine.d[i] = float(total);
      } else {
        uint32_t total = uint32_t(mine.c[i]);
        for (int k = 0; k < K; ++k) total += uint32_t(row[k] * column[k]);
        mine.d[i] = int(total);
      }
    }
  }
}

// d = a b + c on arrays; Sums may be float, int, or half in pairs.
template <class A, class B, int K>
EMU_UNCHECKED inline void emu_mma(emu_fragments<A, B, K>& fragments, uint32_t line) {
  emu_collective(0xffffffffu, emu_combine_fragments<A, B, K>, &fragments, "mma.sync", line);
}

struct emu_matrix_load {
  const void* row;
  uint32_t result[4];
};

template <int Count, bool Transposed>
EMU_UNCHECKED inline void emu_combine_load(void** lanes, uint32_t) {
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < Count; ++m) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        int row = Transposed ? 2 * (lane % 4) + i : lane / 4, column = Transposed ? lane / 4 : 2 * (lane % 4) + i;
        pair[i] = static_cast<const uint16_t*>(static_cast<emu_matrix_load*>(lanes[8 * m + row])->row)[column];
      }
      static_cast<emu_matrix_load*>(lanes[lane])->result[m] = uint32_t(pair[1]) << 16 | pair[0];
    }
}
template <int Count, bool Transposed>
EMU_UNCHECKED __attribute__((noinline)) void emu_load_matrices(uint32_t* results, uint32_t address, uint32_t line) {
  emu_matrix_load mine = {emu_from_shared(address), {}};
  if (int(emu_lane()) < 8 * Count) emu_check_read(mine.row, 16, EMU_PLACE);
  emu_collective(0xffffffffu, emu_combine_load<Count, Transposed>, &mine, "ldmatrix", line);
  for (int i = 0; i < Count; ++i) results[i] = mine.result[i];
}
