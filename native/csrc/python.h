// Owned references to Python objects: made, copied and dropped with the interpreter's lock held.
#pragma once
#include <Python.h>
#include <pybind11/pybind11.h>

#include <utility>

namespace nxcore {

using Ref = pybind11::object;

inline Ref steal(PyObject* object) { return pybind11::reinterpret_steal<Ref>(object); }
inline Ref share(PyObject* object) { return pybind11::reinterpret_borrow<Ref>(object); }

// A tuple of what `make` returns for each index: a new reference, or null with an error set. None where it failed.
template <typename Make>
Ref tuple_of(size_t count, Make make) {
  Ref all = steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; all && i < count; ++i) {
    PyObject* one = make(i);
    if (!one) return Ref();
    PyTuple_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), one);
  }
  return all;
}

// A copy of nested tuples and lists of numbers, where item(i) takes the place of each number i. None stays.
template <typename Item>
Ref filled(PyObject* form, Item item) {
  if (form == Py_None) return share(form);
  if (PyLong_Check(form)) return steal(item(PyLong_AsSize_t(form)));
  const auto inner = [&](size_t i) { return filled(PySequence_Fast_ITEMS(form)[i], item).release().ptr(); };
  const Ref all = tuple_of(static_cast<size_t>(PySequence_Fast_GET_SIZE(form)), inner);
  return all && PyList_Check(form) ? steal(PySequence_List(all.ptr())) : all;
}

}  // namespace nxcore
