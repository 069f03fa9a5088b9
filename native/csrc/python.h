// Python objects: references to them, made, copied and dropped with the interpreter's lock held; and a class of them.
#pragma once
#include <Python.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
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

// A class of Python objects that are called, and own a structure of the extension.
// `Held` has `int visit(visitproc, void*) const` for its references.
template <typename Held>
struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  Held* held;

  static Held& of(PyObject* self) { return *reinterpret_cast<Callable*>(self)->held; }

  static PyObject* make(PyTypeObject* type, vectorcallfunc call, std::unique_ptr<Held> held) {
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    reinterpret_cast<Callable*>(self)->vectorcall = call;
    reinterpret_cast<Callable*>(self)->held = held.release();
    return self;
  }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    const Held* held = reinterpret_cast<Callable*>(self)->held;
    return held ? held->visit(visit, arg) : 0;
  }

  static void dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    delete std::exchange(reinterpret_cast<Callable*>(self)->held, nullptr);
    Py_TYPE(self)->tp_free(self);
  }

  static PyTypeObject type(const char* name, const char* doc, newfunc create, unsigned long flags,
                           PyMethodDef* methods = nullptr) {
    PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
    type.tp_name = name;
    type.tp_doc = doc;
    type.tp_basicsize = sizeof(Callable);
    type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | flags;
    type.tp_vectorcall_offset = flags & Py_TPFLAGS_HAVE_VECTORCALL ? offsetof(Callable, vectorcall) : 0;
    type.tp_call = flags & Py_TPFLAGS_HAVE_VECTORCALL ? PyVectorcall_Call : nullptr;
    type.tp_new = create;
    type.tp_traverse = traverse;
    type.tp_dealloc = dealloc;
    type.tp_methods = methods;
    return type;
  }
};

}  // namespace nxcore
