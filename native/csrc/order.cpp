#include "order.h"

#include <pybind11/stl.h>

namespace nxcore {

Ref tuple_of(uint64_t mask, size_t count) {
  Ref all = steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; all && i < count; ++i)
    PyTuple_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(mask >> i & 1 ? Py_True : Py_False));
  return all;
}

const Order* Orders::find(PyObject* owner, uint64_t mask, size_t count, const Ref& grad, const Ref& saved,
                          const Ref& numbers) {
  for (const auto& order : all_)
    if (order->mask == mask) return order->known ? order.get() : nullptr;
  const Ref flags = tuple_of(mask, count);
  if (!flags) return nullptr;
  const Ref found =
      steal(PyObject_CallMethod(owner, "order", "OOOO", grad.ptr(), flags.ptr(), saved.ptr(), numbers.ptr()));
  if (!found) return nullptr;
  const bool known = found.ptr() != Py_None;
  auto sources = known ? pybind11::cast<std::vector<Source>>(pybind11::handle(found.ptr())) : std::vector<Source>();
  all_.push_back(std::make_unique<Order>(Order{mask, known, std::move(sources)}));
  return known ? all_.back().get() : nullptr;
}

Ref Order::call(PyObject* backward, const Ref& grad, const Ref& saved, const Ref& numbers) const {
  std::vector<PyObject*> args;  // borrowed, but for the tuples of `made`
  std::vector<Ref> made;
  for (const auto& [where, index, constant] : sources) {
    if (where == "grad") {
      args.push_back(grad.ptr());
    } else if (where == "saved" || where == "number") {
      args.push_back(PyTuple_GET_ITEM((where == "saved" ? saved : numbers).ptr(), index[0]));
    } else if (where == "all") {
      made.push_back(steal(PyTuple_New(static_cast<Py_ssize_t>(index.size()))));
      if (!made.back()) return Ref();
      for (size_t i = 0; i < index.size(); ++i)
        PyTuple_SET_ITEM(made.back().ptr(), static_cast<Py_ssize_t>(i),
                         Py_NewRef(PyTuple_GET_ITEM(saved.ptr(), index[i])));
      args.push_back(made.back().ptr());
    } else {
      args.push_back(constant.ptr());
    }
  }
  return steal(PyObject_Vectorcall(backward, args.data(), args.size(), nullptr));
}

}  // namespace nxcore
