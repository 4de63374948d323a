// PTX instructions. The build turns every `asm` statement of a kernel into calls: those of the families in ptx_families.py
// of the functions named there, all others of the functions here. `.` and `:` of the name become `_`, operands come in the
// order of the text, and those in braces one by one.
#pragma once

#define EMU_PTX __forceinline__
namespace emu_ptx {
#define EMU_MOVES(type)                                                                     \
  template <class D, class T> EMU_PTX void mov_##type(D& d, T a) { d = D(a); }              \
  template <class D, class A, class B> EMU_PTX void selp_##type(D& d, A a, B b, bool p) { d = p ? D(a) : D(b); }
EMU_MOVES(b32) EMU_MOVES(u32) EMU_MOVES(s32) EMU_MOVES(f32) EMU_MOVES(b64) EMU_MOVES(u64) EMU_MOVES(s64) EMU_MOVES(pred)

#define EMU_LOADS(order, scope, type, width)                                                            \
  template <class T> EMU_PTX void ld_##order##_##scope##_global_##type(T& d, const void* a, EMU_LINE) { \
    static_assert(sizeof(T) * 8 == width);                                                              \
    d = emu_load(static_cast<const T*>(a), emu_##order, "ld." #order, line);                            \
  }                                                                                                     \
  template <class T> EMU_PTX void ld_##order##_##scope##_##type(T& d, const void* a, EMU_LINE) {        \
    d = emu_load(static_cast<const T*>(a), emu_##order, "ld." #order, line);                            \
  }
#define EMU_STORES(order, scope, type, width)                                                           \
  template <class T> EMU_PTX void st_##order##_##scope##_global_##type(const void* a, T v) {            \
    emu_store(static_cast<T*>(const_cast<void*>(a)), v, emu_##order);                                   \
  }                                                                                                     \
  template <class T> EMU_PTX void st_##order##_##scope##_##type(const void* a, T v) {                   \
    emu_store(static_cast<T*>(const_cast<void*>(a)), v, emu_##order);                                   \
  }
#define EMU_UPDATE(operation, expression, order, scope, type, width)                                                    \
  template <class T> EMU_PTX void red_##order##_##scope##_global_##operation##_##type(const void* a, T v, EMU_LINE) {   \
    emu_update(static_cast<T*>(const_cast<void*>(a)), emu_##order, "red", line, [=](T old) { return T(expression); });  \
  }                                                                                                                     \
  template <class T>                                                                                                    \
  EMU_PTX void atom_##order##_##scope##_global_##operation##_##type(T& d, const void* a, T v, EMU_LINE) {               \
    d = emu_update(static_cast<T*>(const_cast<void*>(a)), emu_##order, "atom", line,                                    \
                   [=](T old) { return T(expression); });                                                               \
  }
#define EMU_UPDATES(order, scope, type, width)                       \
  EMU_UPDATE(add, old + v, order, scope, type, width)                \
  EMU_UPDATE(max, old > v ? old : v, order, scope, type, width)      \
  EMU_UPDATE(min, old < v ? old : v, order, scope, type, width)      \
  EMU_UPDATE(exch, v, order, scope, type, width)                     \
  EMU_UPDATE(inc, old >= v ? 0 : old + 1, order, scope, type, width) \
  EMU_UPDATE(dec, old == 0 || old > v ? v : old - 1, order, scope, type, width)
#define EMU_CAS(order, scope, type, width)                                                                    \
  template <class T>                                                                                          \
  EMU_PTX void atom_##order##_##scope##_global_cas_##type(T& d, const void* a, T expected, T v, EMU_LINE) {   \
    d = emu_update(static_cast<T*>(const_cast<void*>(a)), emu_##order, "atom.cas", line,                      \
                   [=](T old) { return old == expected ? v : old; });                                         \
  }
#define EMU_TYPES(what, order, scope)                                                                            \
  what(order, scope, b32, 32) what(order, scope, s32, 32) what(order, scope, u32, 32) what(order, scope, f32, 32) \
  what(order, scope, b64, 64) what(order, scope, s64, 64) what(order, scope, u64, 64)
#define EMU_SCOPES(what, order) \
  EMU_TYPES(what, order, gpu) EMU_TYPES(what, order, sys) EMU_TYPES(what, order, cta) EMU_TYPES(what, order, cluster)
EMU_SCOPES(EMU_LOADS, acquire)
EMU_SCOPES(EMU_LOADS, relaxed)
EMU_SCOPES(EMU_STORES, release)
EMU_SCOPES(EMU_STORES, relaxed)
EMU_SCOPES(EMU_UPDATES, relaxed)
EMU_SCOPES(EMU_UPDATES, release)
EMU_SCOPES(EMU_UPDATES, acquire)
EMU_SCOPES(EMU_UPDATES, acq_rel)
EMU_SCOPES(EMU_CAS, relaxed)
EMU_SCOPES(EMU_CAS, release)
EMU_SCOPES(EMU_CAS, acquire)
EMU_SCOPES(EMU_CAS, acq_rel)

// Launches run one after the other here: there is nothing to wait for.
EMU_PTX void griddepcontrol_wait(EMU_LINE) { while (!emu_dependencies_over()) emu_pause("griddepcontrol.wait", line); }
EMU_PTX void griddepcontrol_launch_dependents() { emu_trigger(); }
template <class N> EMU_PTX void setmaxnreg_inc_sync_aligned_u32(N) {}
template <class N> EMU_PTX void setmaxnreg_dec_sync_aligned_u32(N) {}
EMU_PTX void nanosleep_u32(unsigned, EMU_LINE) { emu_pause("nanosleep", line); }
EMU_PTX void trap(EMU_LINE) { emu_fault("trap", line); }


EMU_PTX void membar_gl() { emu_fence(); }
EMU_PTX void membar_sys() { emu_fence(); }
EMU_PTX void membar_cta() { emu_fence(); }

#define EMU_LDMATRIX(space)                                                                                         \
  EMU_PTX void ldmatrix_sync_aligned_m8n8_x1_##space##_b16(uint32_t& a, uint32_t p, EMU_LINE) { emu_load_matrices<1, false>(&a, p, line); }       \
  EMU_PTX void ldmatrix_sync_aligned_m8n8_x1_trans_##space##_b16(uint32_t& a, uint32_t p, EMU_LINE) { emu_load_matrices<1, true>(&a, p, line); }  \
  EMU_PTX void ldmatrix_sync_aligned_m8n8_x2_##space##_b16(uint32_t& a, uint32_t& b, uint32_t p, EMU_LINE) {        \
    uint32_t r[2]; emu_load_matrices<2, false>(r, p, line); a = r[0], b = r[1];                                     \
  }                                                                                                                 \
  EMU_PTX void ldmatrix_sync_aligned_m8n8_x2_trans_##space##_b16(uint32_t& a, uint32_t& b, uint32_t p, EMU_LINE) {  \
    uint32_t r[2]; emu_load_matrices<2, true>(r, p, line); a = r[0], b = r[1];                                      \
  }                                                                                                                 \
  EMU_PTX void ldmatrix_sync_aligned_m8n8_x4_##space##_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t p, EMU_LINE) {       \
    uint32_t r[4]; emu_load_matrices<4, false>(r, p, line); a = r[0], b = r[1], c = r[2], d = r[3];                 \
  }                                                                                                                 \
  EMU_PTX void ldmatrix_sync_aligned_m8n8_x4_trans_##space##_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t p, EMU_LINE) { \
    uint32_t r[4]; emu_load_matrices<4, true>(r, p, line); a = r[0], b = r[1], c = r[2], d = r[3];                  \
  }
EMU_LDMATRIX(shared)
EMU_LDMATRIX(shared__cta)

#define EMU_MMA_32(name, A, B, K)                                                                                       \
  template <class D, class R> EMU_PTX void name(D& d0, D& d1, D& d2, D& d3, R a0, R a1, R a2, R a3, R b0, R b1,          \
                                                D c0, D c1, D c2, D c3, EMU_LINE) {                                      \
    emu_fragments<A, B, K> p = {{uint32_t(a0), uint32_t(a1), uint32_t(a2), uint32_t(a3)}, {uint32_t(b0), uint32_t(b1)}, {c0, c1, c2, c3}, {}};  \
    emu_mma(p, line);                                                                                                   \
    d0 = p.d[0], d1 = p.d[1], d2 = p.d[2], d3 = p.d[3];                                                                 \
  }
#define EMU_MMA_16(name, A, B, K)                                                                                       \
  template <class D, class R> EMU_PTX void name(D& d0, D& d1, D& d2, D& d3, R a0, R a1, R b0, D c0, D c1, D c2, D c3, EMU_LINE) { \
    emu_fragments<A, B, K> p = {{uint32_t(a0), uint32_t(a1)}, {uint32_t(b0)}, {c0, c1, c2, c3}, {}};                       \
    emu_mma(p, line);                                                                                                   \
    d0 = p.d[0], d1 = p.d[1], d2 = p.d[2], d3 = p.d[3];                                                                 \
  }
EMU_MMA_32(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, emu_f16, emu_f16, 16)
EMU_MMA_32(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, emu_bf16, emu_bf16, 16)
EMU_MMA_16(mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32, emu_f16, emu_f16, 8)
EMU_MMA_16(mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32, emu_bf16, emu_bf16, 8)
EMU_MMA_32(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, emu_tf32, emu_tf32, 8)
EMU_MMA_16(mma_sync_aligned_m16n8k4_row_col_f32_tf32_tf32_f32, emu_tf32, emu_tf32, 4)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, emu_s8, emu_s8, 32)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32, emu_u8, emu_s8, 32)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_s32_s8_u8_s32, emu_s8, emu_u8, 32)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_s32_u8_u8_s32, emu_u8, emu_u8, 32)
EMU_MMA_16(mma_sync_aligned_m16n8k16_row_col_s32_s8_s8_s32, emu_s8, emu_s8, 16)
EMU_MMA_16(mma_sync_aligned_m16n8k16_row_col_s32_u8_s8_s32, emu_u8, emu_s8, 16)
// The nearest number with 10 bits of mantissa, ties away from zero; NaN and infinities stay.
template <class R> EMU_PTX void cvt_rna_tf32_f32(R& d, float x) {
  uint32_t bits = emu_float_bits(x);
  d = R((bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000);
}
// 2 to the power of x; what is below the least normal number is 0, before and after.
template <class R> EMU_PTX void ex2_approx_ftz_f32(R& d, float x) {
  float y = __builtin_exp2f(x > -0x1p-126f && x < 0x1p-126f ? 0 : x);
  d = R(y < 0x1p-126f ? 0 : y);
}
// The reciprocal; numbers below the least normal one are 0, before and after.
template <class R> EMU_PTX void rcp_approx_ftz_f32(R& d, float x) {
  float y = 1.0f / (__builtin_fabsf(x) < 0x1p-126f ? x * 0 : x);
  d = R(__builtin_fabsf(y) < 0x1p-126f ? y * 0 : y);
}
template <class R> EMU_PTX void max_NaN_f32(R& d, float a, float b) { d = R(a > b || a != a ? a : b); }
template <class R> EMU_PTX void min_NaN_f32(R& d, float a, float b) { d = R(a < b || a != a ? a : b); }
template <class R> EMU_PTX void cvt_rn_f16_f32(R& d, float x) { d = R(emu_float_to_half(x)); }
template <class R> EMU_PTX void cvt_rn_f16x2_f32(R& d, float high, float low) {
  d = R(emu_float_to_half(low) | uint32_t(emu_float_to_half(high)) << 16);
}
template <class R> EMU_PTX void cvt_rn_bf16x2_f32(R& d, float high, float low) {
  d = R(emu_float_to_bfloat(low) | uint32_t(emu_float_to_bfloat(high)) << 16);
}
template <class R> EMU_PTX void cvt_rn_f16x2_e4m3x2(R& d, uint16_t x) {
  d = R(emu_float_to_half(emu_e4m3::decode(x & 255)) | uint32_t(emu_float_to_half(emu_e4m3::decode(x >> 8))) << 16);
}
template <class R> EMU_PTX void cvt_rn_f16x2_e5m2x2(R& d, uint16_t x) {
  d = R(emu_float_to_half(emu_e5m2::decode(x & 255)) | uint32_t(emu_float_to_half(emu_e5m2::decode(x >> 8))) << 16);
}
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e4m3_f32, emu_e4m3, emu_e4m3, 32)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e5m2_f32, emu_e4m3, emu_e5m2, 32)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e4m3_f32, emu_e5m2, emu_e4m3, 32)
EMU_MMA_32(mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e5m2_f32, emu_e5m2, emu_e5m2, 32)

// float16 accumulators: two registers of two
template <class R>
EMU_PTX void mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(R& d0, R& d1, R a0, R a1, R a2, R a3, R b0, R b1, R c0, R c1, EMU_LINE) {
  auto low = [](R x) { return emu_half_to_float(uint16_t(x)); };
  auto high = [](R x) { return emu_half_to_float(uint16_t(x >> 16)); };
  auto pack = [](float x, float y) { return R(emu_float_to_half(x) | uint32_t(emu_float_to_half(y)) << 16); };
  emu_fragments<emu_f16, emu_f16, 16> p = {{a0, a1, a2, a3}, {b0, b1}, {low(c0), high(c0), low(c1), high(c1)}, {}};
  emu_mma(p, line);
  d0 = pack(p.d[0], p.d[1]), d1 = pack(p.d[2], p.d[3]);
}
}  // namespace emu_ptx
