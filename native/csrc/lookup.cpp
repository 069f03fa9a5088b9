// Lookup: the base of an operator's class, which finds plans without running Python.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>

#include "callable.h"
#include "table.h"
#include "types.h"

namespace nxcore {
namespace {

struct State {
  std::vector<Param> params;
  Py_ssize_t positional = 0;  // parameters that may be passed by position
  bool lowers = false;        // autocast casts its arguments to a dtype of the thread's
  bool open = true;           // false at the end of the process, which Python's tables handle
  Table table;
  Ref near;    // the Python path's table, with which this one is emptied
  Ref python;  // the generated __call__

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(near.ptr());
    Py_VISIT(python.ptr());
    for (const Param& param : params) Py_VISIT(param.standard.ptr());
    return table.visit(visit, arg);
  }
};

using Lookup = Callable<State>;

// Binds a call as the generated __call__ would; borrowed references. Returns false where Python must bind.
bool bind(const State& state, PyObject* const* args, Py_ssize_t count, PyObject* kwnames, PyObject** bound) {
  const Py_ssize_t size = static_cast<Py_ssize_t>(state.params.size());
  if (count > state.positional) return false;
  for (Py_ssize_t i = 0; i < size; ++i) bound[i] = i < count ? args[i] : nullptr;
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, k);
    Py_ssize_t i = count;
    while (i < size && state.params[i].name.ptr() != name) ++i;
    if (i == size || bound[i]) return false;  // unknown, given twice, or not interned
    bound[i] = args[count + k];
  }
  for (Py_ssize_t i = 0; i < size; ++i) {
    const Param& param = state.params[i];
    if (!bound[i]) bound[i] = param.standard.ptr();
    if (!bound[i] || (param.drawn && bound[i] == param.standard.ptr())) return false;
  }
  return true;
}

// Calls a method with `self`, `head` and the bound arguments.
PyObject* method(PyObject* name, PyObject* self, PyObject* const* head, size_t heads, PyObject* const* bound,
                 size_t count) {
  PyObject* all[MOST + 4];
  size_t n = 0;
  all[n++] = self;
  for (size_t i = 0; i < heads; ++i) all[n++] = head[i];
  for (size_t i = 0; i < count; ++i) all[n++] = bound[i];
  return PyObject_VectorcallMethod(name, all, n, nullptr);
}

PyObject* by_python(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  std::vector<PyObject*> all(1 + count + named);
  all[0] = self;
  std::copy(args, args + count + named, all.begin() + 1);
  const Ref function = Lookup::of(self).python;
  if (!function) return PyErr_Format(PyExc_RuntimeError, "this operator was never adopted");
  return PyObject_Vectorcall(function.ptr(), all.data(), 1 + count, kwnames);
}

// The error that is set, with its traceback, no longer set.
Ref taken() {
#if PY_VERSION_HEX >= 0x030C0000
  return steal(PyErr_GetRaisedException());
#else
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return steal(value);
#endif
}

// Finds the plan of a call and its key. Returns false where only Python may find one, or with an error set.
bool found(const State& state, PyObject* const* bound, Ref& key, Ref& plan) {
  try {
    Around now;
    uint64_t hash;
    if (state.open && now.read(state.lowers) && state.table.hash(state.params, now, bound, hash))
      if (const Entry* entry = state.table.find(hash, now, bound)) key = entry->key, plan = entry->plan;
  } catch (const std::exception&) {
    // A tensor that torch refuses to describe: the Python path says why.
  }
  return plan && !PyErr_Occurred();
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  State& state = Lookup::of(self);
  const Py_ssize_t given = PyVectorcall_NARGS(nargsf);
  PyObject* bound[MOST];
  if (!bind(state, args, given, kwnames, bound)) return by_python(self, args, given, kwnames);
  static PyObject* const far = PyUnicode_InternFromString("far");
  static PyObject* const raised = PyUnicode_InternFromString("raised");
  const size_t count = state.params.size();
  Ref key, plan;  // the plan outlives a change of the table by what it calls
  if (!found(state, bound, key, plan)) return PyErr_Occurred() ? nullptr : method(far, self, nullptr, 0, bound, count);
  PyObject* result = PyObject_Vectorcall(plan.ptr(), bound, count, nullptr);
  if (result || !PyErr_ExceptionMatches(PyExc_Exception)) return result;
  const Ref error = taken();
  PyObject* const head[] = {key.ptr(), plan.ptr(), error.ptr()};
  return method(raised, self, head, 3, bound, count);
}

// admit(near, key, plan, args): adds a plan, unless `near` was replaced since it was found.
PyObject* admit(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  State& state = Lookup::of(self);
  if (count != 4 || !PyTuple_Check(args[3]) || PyTuple_GET_SIZE(args[3]) != (Py_ssize_t)state.params.size())
    return PyErr_Format(PyExc_TypeError, "admit() takes a table, a key, a plan and all arguments");
  PyObject* const* bound = PySequence_Fast_ITEMS(args[3]);
  if (!state.open || args[0] != state.near.ptr()) Py_RETURN_NONE;
  try {
    auto entry = std::make_unique<Entry>();
    uint64_t hash;
    if (!entry->around.read(state.lowers) || !state.table.hash(state.params, entry->around, bound, hash))
      Py_RETURN_NONE;
    for (size_t i = 0; i < state.params.size(); ++i) entry->guards.emplace_back(state.params[i].kind, bound[i]);
    entry->key = share(args[1]);
    entry->plan = share(args[2]);
    state.table.add(hash, std::move(entry), bound);
  } catch (const std::exception&) {
    // No guard can be made: such calls are found by their key.
  }
  Py_RETURN_NONE;
}

// find(*args): the key and the plan of a call with all arguments, or None.
PyObject* find(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const State& state = Lookup::of(self);
  if (count != static_cast<Py_ssize_t>(state.params.size()))
    return PyErr_Format(PyExc_TypeError, "find() takes all %zu arguments, got %zd", state.params.size(), count);
  Ref key, plan;
  if (found(state, args, key, plan)) return PyTuple_Pack(2, key.ptr(), plan.ptr());
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

PyObject* size(PyObject* self, PyObject*) { return PyLong_FromSize_t(Lookup::of(self).table.size()); }

PyObject* get_near(PyObject* self, void*) {
  PyObject* near = Lookup::of(self).near.ptr();
  if (!near) return PyErr_Format(PyExc_AttributeError, "near");
  return Py_NewRef(near);
}

int set_near(PyObject* self, PyObject* value, void*) {
  State& state = Lookup::of(self);
  state.open = value && PyDict_CheckExact(value);  // another class ends the calling thread at a look-up
  Ref before = std::exchange(state.near, share(value));
  state.table.clear();
  return 0;
}

int clear(PyObject* self) {
  Lookup::of(self).table.clear();
  const Ref dropped = std::exchange(Lookup::of(self).near, Ref());
  return 0;
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  return Lookup::make(type, call, std::make_unique<State>());
}

PyMethodDef methods[] = {{"admit", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(admit)), METH_FASTCALL,
                          "admit(near, key, plan, args): add a plan that calls like this one find here."},
                         {"find", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(find)), METH_FASTCALL,
                          "find(*args): return the key and the plan of a call with all arguments, or None."},
                         {"admitted", size, METH_NOARGS, "admitted(): return the number of plans that are found here."},
                         {nullptr, nullptr, 0, nullptr}};
PyGetSetDef fields[] = {{"near", get_near, set_near, "The Python path's table of near plans.", nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject LookupType = [] {
  PyTypeObject type =
      Lookup::type("nxcore_native.Lookup", "The base of an operator's class, which finds plans without running Python.",
                   create, Py_TPFLAGS_BASETYPE, methods);
  type.tp_getset = fields;
  type.tp_clear = clear;
  return type;
}();

PyObject* adopt(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  using Given = std::tuple<Ref, char, Ref, bool, bool, bool>;
  auto [self, params, lowers, python] =
      pybind11::cast<std::tuple<Ref, std::vector<Given>, bool, Ref>>(pybind11::handle(args));
  TORCH_CHECK_TYPE(PyObject_TypeCheck(self.ptr(), &LookupType), "takes an operator");
  State& state = Lookup::of(self.ptr());
  TORCH_CHECK(state.params.empty(), "an operator is adopted once");
  TORCH_CHECK_VALUE(params.size() <= MOST, "takes at most ", MOST, " parameters");
  for (auto& [name, kind, standard, required, keyword, drawn] : params) {
    PyObject* interned = name.release().ptr();
    PyUnicode_InternInPlace(&interned);
    state.params.push_back({steal(interned), static_cast<Kind>(kind), required ? Ref() : standard, keyword, drawn});
    if (!keyword) state.positional = static_cast<Py_ssize_t>(state.params.size());
  }
  state.lowers = lowers;
  state.python = python;
  // Only the slots of the class change. Its __call__ stays Python's, which compilers trace and signatures show.
  PyTypeObject* type = Py_TYPE(self.ptr());
  type->tp_call = PyVectorcall_Call;
  type->tp_vectorcall_offset = offsetof(Lookup, vectorcall);
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace nxcore
