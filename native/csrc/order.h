// Orders: where a backward operator's arguments come from, by which gradients a pass needs.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "python.h"

namespace nxcore {

// "grad"; a "saved" tensor or a "number" by its index; "all" of several saved tensors; or a "constant".
using Source = std::tuple<std::string, std::vector<Py_ssize_t>, Ref>;

struct Order {
  uint64_t mask;
  bool known;  // otherwise Python makes the arguments
  std::vector<Source> sources;

  // Calls `backward` with the arguments; none where it raised.
  Ref call(PyObject* backward, const Ref& grad, const Ref& saved, const Ref& numbers) const;
};

// The orders of a plan. Used with the interpreter's lock held; constants among the arguments are plain data.
class Orders {
 public:
  // The order for these gradients, found by `owner.order` in the first pass that needs it. Null where Python
  // makes the arguments, and with an error set.
  const Order* find(PyObject* owner, uint64_t mask, size_t count, const Ref& grad, const Ref& saved,
                    const Ref& numbers);

 private:
  std::vector<std::unique_ptr<Order>> all_;
};

// A mask's bits as a tuple of bool.
Ref tuple_of(uint64_t mask, size_t count);

}  // namespace nxcore
