// PTX to machine code, as the driver compiles it when a module is loaded: by nvJitLink of CUDA 13.0, which has the
// assembler that drivers of that version have. Where it is not installed, PTX is refused.
#include "standin.h"

#ifdef STANDIN_NVJITLINK
#include <dlfcn.h>
#define NVJITLINK_NO_INLINE
#include <nvJitLink.h>
#endif

namespace standin {

#ifdef STANDIN_NVJITLINK
namespace {

template <typename Function>
Function* entry(const char* name) {
  static void* library = dlopen(STANDIN_NVJITLINK, RTLD_NOW | RTLD_LOCAL);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found) refuse(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "%s is not in %s", name, STANDIN_NVJITLINK);
  return reinterpret_cast<Function*>(found);
}

#define ENTRY(name) entry<decltype(__##name##_13_0)>("__" #name "_13_0")

// A link of one PTX text; gone with this object.
class Link {
 public:
  explicit Link(const Gpu& gpu) {
    std::string architecture = "-arch=sm_" + std::to_string(10 * gpu.major + gpu.minor);
    const char* options[] = {architecture.c_str()};
    check(ENTRY(nvJitLinkCreate)(&handle_, 1, options));
  }
  ~Link() { ENTRY(nvJitLinkDestroy)(&handle_); }

  std::string compiled(const std::string& ptx) {
    check(ENTRY(nvJitLinkAddData)(handle_, NVJITLINK_INPUT_PTX, ptx.c_str(), ptx.size() + 1, "image"));
    check(ENTRY(nvJitLinkComplete)(handle_));
    size_t nbytes = 0;
    check(ENTRY(nvJitLinkGetLinkedCubinSize)(handle_, &nbytes));
    std::string cubin(nbytes, '\0');
    check(ENTRY(nvJitLinkGetLinkedCubin)(handle_, cubin.data()));
    return cubin;
  }

 private:
  void check(nvJitLinkResult status) {
    if (status == NVJITLINK_SUCCESS) return;
    size_t nbytes = 0;
    std::string log;
    if (handle_ && ENTRY(nvJitLinkGetErrorLogSize)(handle_, &nbytes) == NVJITLINK_SUCCESS && nbytes) {
      log.resize(nbytes);
      ENTRY(nvJitLinkGetErrorLog)(handle_, log.data());
    }
    refuse(CUDA_ERROR_INVALID_PTX, "PTX is not compiled (%d): %s", int(status), log.c_str());
  }

  nvJitLinkHandle handle_ = nullptr;
};

}  // namespace

std::string compile_ptx(const Gpu& gpu, const std::string& ptx) { return Link(gpu).compiled(ptx); }

#else

std::string compile_ptx(const Gpu&, const std::string&) {
  refuse(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX is compiled by nvJitLink, which is not here: pip install nvidia-nvjitlink");
}

#endif

}  // namespace standin
