// Guards: what a plan was found for, compared with a call by reads of its tensors and of the thread's state.
#pragma once
#include <ATen/Context.h>

#include <cstdint>
#include <vector>

#include "python.h"

namespace nxcore {

// What a guard reads of Python and of torch. Set once, when the extension is bound.
extern struct Environment {
  Ref preference;  // the ContextVar of nxcore.use, policy, record and profile
  Ref nothing;     // its value where none of them is used
  Ref raw_stream;  // torch's function from a CUDA device's index to its current stream
  const at::Context* settings;
}* const environment;

// What is in force around a call. A thread's dispatch keys tell autocast, modes, transforms, traces, inference mode.
struct Around {
  // Reads the calling thread's state. Returns false where only the Python path serves a call.
  bool read(bool lowers);
  bool operator==(const Around& other) const;
  // Whether nothing is in force that plans depend on: no autocast, mode, transform, preference or inference mode.
  bool ordinary() const;

  uint64_t included = 0, excluded = 0;
  bool grad = false, deterministic = false;
  at::ScalarType cpu = at::ScalarType::Undefined, cuda = at::ScalarType::Undefined;  // autocast's dtypes
  Ref preference;
};

// One tensor, by all that a plan may be specialised on.
class TensorGuard {
 public:
  explicit TensorGuard(PyObject* tensor);
  bool passes(PyObject* value) const;

 private:
  PyTypeObject* type_;         // torch.Tensor or torch.nn.Parameter, which live as long as the process
  uint64_t keys_, gradients_;  // layout, lazy negation, subclasses; see gradients_of
  at::ScalarType dtype_;
  at::Device device_;
  bool empty_;
  std::vector<int64_t> sizes_, strides_;
};

bool is_tensor(PyObject* value);
bool is_sequence(PyObject* value);  // a tuple or list

// The items of a sequence, or the value itself. Borrowed: no code of a program may run while they are used.
at::ArrayRef<PyObject*> items_of(PyObject* const& value);

// What a hash tells apart: calls, by their sizes; or families, whose calls differ in sizes and strides alone.
enum class Apart { calls, families };

void mix(uint64_t value, uint64_t& hash);
// Mixes a tensor. Returns false where it can't be read.
bool mix_tensor(PyObject* tensor, Apart apart, uint64_t& hash);
Ref sizes_of(PyObject* tensor);  // a tuple

// Whether two values are of one class and equal; by identity, but for numbers, strings and tuples: no program's code.
bool alike(PyObject* a, PyObject* b);

}  // namespace nxcore
