// Guards: what a plan was found for, compared with a call by reads of its tensors and of the thread's state.
#pragma once
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "python.h"

namespace nxcore {

// What a guard reads of Python and of torch. Set once, when the extension is bound.
struct Environment {
  Ref preference;  // the ContextVar of nxcore.use, policy, record and profile
  Ref nothing;     // its value where none of them is used
  Ref raw_stream;  // torch's function from a CUDA device's index to its current stream
  const at::Context* settings;
};
inline Environment* const environment = new Environment{};  // never freed: the interpreter may end before

inline bool is_tensor(PyObject* value) { return THPVariable_CheckExact(value); }
inline bool is_sequence(PyObject* value) { return PyTuple_CheckExact(value) || PyList_CheckExact(value); }

// The items of a sequence, or the value itself. Borrowed: no code of a program may run while they are used.
inline at::ArrayRef<PyObject*> items_of(PyObject* const& value) {
  if (!is_sequence(value)) return {&value, 1};
  return {PySequence_Fast_ITEMS(value), static_cast<size_t>(PySequence_Fast_GET_SIZE(value))};
}

// Whether two values are of one class and equal; by identity, but for numbers, strings and tuples: no program's code.
inline bool alike(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyTuple_Check(a)) {
    const Py_ssize_t count = PyTuple_GET_SIZE(a);
    if (count != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!alike(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (!PyLong_CheckExact(a) && !PyFloat_CheckExact(a) && !PyUnicode_CheckExact(a)) return false;
  return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

// What is in force around a call. A thread's dispatch keys tell autocast, modes, transforms, traces, inference mode.
struct Around {
  // Reads the calling thread's state. Returns false where only the Python path serves a call.
  bool read(bool lowers) {
    if (at::impl::torch_function_mode_enabled()) return false;
    PyObject* now = nullptr;
    if (PyContextVar_Get(environment->preference.ptr(), nullptr, &now) < 0 || !now) return false;
    preference = steal(now);
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    included = keys.included_.raw_repr();
    excluded = keys.excluded_.raw_repr();
    grad = c10::GradMode::is_enabled();
    deterministic = environment->settings->deterministicAlgorithms();
    if (lowers) {  // whether autocast is on is in the keys
      cpu = at::autocast::get_autocast_dtype(at::kCPU);
      cuda = at::autocast::get_autocast_dtype(at::kCUDA);
    }
    return true;
  }

  bool operator==(const Around& other) const {
    return included == other.included && excluded == other.excluded && grad == other.grad &&
           deterministic == other.deterministic && cpu == other.cpu && cuda == other.cuda &&
           alike(preference.ptr(), other.preference.ptr());
  }

  // Whether nothing is in force that plans depend on: no autocast, mode, transform, preference or inference mode.
  bool ordinary() const {
    return included == c10::default_included_set.raw_repr() && excluded == c10::default_excluded_set.raw_repr() &&
           preference.ptr() == environment->nothing.ptr();
  }

  uint64_t included = 0, excluded = 0;
  bool grad = false, deterministic = false;
  at::ScalarType cpu = at::ScalarType::Undefined, cuda = at::ScalarType::Undefined;  // autocast's dtypes
  Ref preference;
};

inline const at::TensorImpl* impl_of(PyObject* tensor) { return THPVariable_Unpack(tensor).unsafeGetTensorImpl(); }

// Whether a tensor requires a gradient, and whether it is a dual number of forward mode: such calls never have a plan.
inline uint64_t gradients_of(const at::TensorImpl* tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor->autograd_meta());  // as torch casts it
  return meta ? meta->AutogradMeta::requires_grad() | (meta->fw_grad_ ? 2 : 0) : 0;
}

// Whether elements are missing: a storage may have been resized to nothing.
inline bool without_memory(const at::TensorImpl* tensor) {
  return tensor->numel() != 0 && (!tensor->unsafe_storage() || !tensor->unsafe_storage().data());
}

// One tensor, by all that a plan may be specialised on.
class TensorGuard {
 public:
  explicit TensorGuard(PyObject* tensor) : type_(Py_TYPE(tensor)), device_(impl_of(tensor)->device()) {
    const at::TensorImpl* impl = impl_of(tensor);
    keys_ = impl->key_set().raw_repr(), gradients_ = gradients_of(impl);
    dtype_ = c10::typeMetaToScalarType(impl->dtype());
    empty_ = impl->numel() == 0;
    sizes_ = impl->sizes().vec();
    strides_ = impl->strides().vec();
  }

  bool passes(PyObject* value) const {
    return Py_TYPE(value) == type_ && fits(impl_of(value)) && gradients_of(impl_of(value)) == gradients_;
  }

  // The same, but for its class and whether it requires a gradient.
  bool fits(const at::TensorImpl* impl) const {
    // The keys come first: only with equal ones are there sizes and strides to read.
    return impl->key_set().raw_repr() == keys_ && impl->sizes().equals(sizes_) && impl->strides().equals(strides_) &&
           c10::typeMetaToScalarType(impl->dtype()) == dtype_ && impl->device() == device_ &&
           (empty_ || !without_memory(impl));
  }

 private:
  PyTypeObject* type_;         // torch.Tensor or torch.nn.Parameter, which live as long as the process
  uint64_t keys_, gradients_;  // layout, lazy negation, subclasses; see gradients_of
  at::ScalarType dtype_;
  at::Device device_;
  bool empty_;
  std::vector<int64_t> sizes_, strides_;
};

// What a hash tells apart: calls, by their sizes; or families, whose calls differ in sizes and strides alone.
enum class Apart { calls, families };

inline void mix(uint64_t value, uint64_t& hash) { hash = (hash ^ value) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29; }

// Whether a number isn't a whole one beyond 64 bits, which an operator may refuse.
inline bool is_short(PyObject* value) {
  if (!PyLong_CheckExact(value)) return true;
  int beyond = 0;
  PyLong_AsLongLongAndOverflow(value, &beyond);
  if (beyond <= 0) return beyond == 0;
  PyLong_AsUnsignedLongLong(value);
  return !PyErr_Occurred() || (PyErr_Clear(), false);
}

// Mixes a value and its class: what `alike` tells apart is apart, unlike hash(-1) and hash(-2). Returns false for one
// without a hash, and for a whole number beyond 64 bits.
inline bool mix_value(PyObject* value, uint64_t& hash) {
  mix(reinterpret_cast<uintptr_t>(Py_TYPE(value)), hash);
  if (PyTuple_CheckExact(value)) {
    const Py_ssize_t count = PyTuple_GET_SIZE(value);
    mix(static_cast<uint64_t>(count), hash);
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!mix_value(PyTuple_GET_ITEM(value, i), hash)) return false;
    return true;
  }
  if (PyLong_CheckExact(value)) {
    int beyond = 0;
    mix(static_cast<uint64_t>(PyLong_AsLongLongAndOverflow(value, &beyond)), hash);
    return beyond == 0;
  }
  if (PyFloat_CheckExact(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return mix(bits, hash), true;
  }
  const Py_hash_t of_value = PyObject_Hash(value);
  if (of_value == -1) return PyErr_Clear(), false;  // a list, which is a tuple in the key
  return mix(static_cast<uint64_t>(of_value), hash), true;
}

// Mixes a tensor. Returns false where it can't be read.
inline bool mix_tensor(PyObject* tensor, Apart apart, uint64_t& hash) {
  const at::TensorImpl* impl = impl_of(tensor);
  if (impl->layout() != at::kStrided || impl->has_symbolic_sizes_strides()) return false;
  if (impl->key_set().has(c10::DispatchKey::NestedTensor)) return false;
  mix(static_cast<uint64_t>(impl->dim()) << 8 | gradients_of(impl), hash);
  if (apart == Apart::calls) {
    for (int64_t size : impl->sizes()) mix(static_cast<uint64_t>(size), hash);
    return true;
  }
  mix(reinterpret_cast<uintptr_t>(Py_TYPE(tensor)), hash);
  mix(impl->key_set().raw_repr(), hash);
  mix(static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())) << 16 | (impl->device().index() + 1), hash);
  return !without_memory(impl);
}

}  // namespace nxcore
