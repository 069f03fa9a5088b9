// Callable: a class of Python objects that are called, and own a structure of the extension.
#pragma once
#include <cstddef>
#include <memory>

#include "python.h"

namespace nxcore {

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
