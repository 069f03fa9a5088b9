// Owned references to Python objects: made, copied and dropped with the interpreter's lock held.
#pragma once
#include <Python.h>
#include <pybind11/pybind11.h>

#include <utility>

namespace nxcore {

using Ref = pybind11::object;

inline Ref steal(PyObject* object) { return pybind11::reinterpret_steal<Ref>(object); }
inline Ref share(PyObject* object) { return pybind11::reinterpret_borrow<Ref>(object); }

}  // namespace nxcore
