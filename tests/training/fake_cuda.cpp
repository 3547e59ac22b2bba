// Makes autograd believe in one CUDA device, on a build of torch that has none.
// Fake tensors compute nothing; all that autograd asks of a device is its current stream.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {
namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::CUDA;
  DeviceType type() const override { return static_type; }
  Device exchangeDevice(Device) const override { return only(); }
  Device getDevice() const override { return only(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, only()); }
  Stream exchangeStream(Stream) const override { return Stream(Stream::DEFAULT, only()); }
  DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static Device only() { return Device(static_type, 0); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Hooks final : CUDAHooksInterface {
  explicit Hooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)

} // namespace
} // namespace at
