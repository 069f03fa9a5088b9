// Lookup: the base of an operator's class, which finds plans without running Python.
#include "rare.h"
#include "types.h"

#include <structmember.h>  // of Python, after it

namespace nxcore {
namespace {

// Torch's own function that does all that the reference does, for calls in a form that it takes.
struct Own {
  Ref function;
  Py_ssize_t most = 0;     // arguments by position
  std::vector<Ref> names;  // of arguments by name, interned
  Form form = Form::same;  // what becomes of its result
  bool single = false;     // whether only for tensors in float32, beside those of bool

  bool takes(Py_ssize_t count, PyObject* kwnames, PyObject* const* bound, size_t size) const {
    if (count < 1 || count > most) return false;
    const auto known = [&](PyObject* name) {
      return std::any_of(names.begin(), names.end(), [&](const Ref& one) { return one.ptr() == name; });
    };
    const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < named; ++i)
      if (!known(PyTuple_GET_ITEM(kwnames, i))) return false;
    for (size_t i = 0; single && i < size; ++i) {
      if (!is_tensor(bound[i])) continue;
      const at::ScalarType dtype = c10::typeMetaToScalarType(impl_of(bound[i])->dtype());
      if (dtype != at::ScalarType::Float && dtype != at::ScalarType::Bool) return false;
    }
    return true;
  }

  // The result as the reference returns it, with an error set where that fails.
  Ref formed(Ref result, PyObject* first) const {
    if (form == Form::tuple) return steal(PySequence_Tuple(result.ptr()));
    if (form == Form::same || !is_tensor(result.ptr())) return result;
    const bool last = impl_of(first)->is_strides_like_channels_last();
    const at::Tensor& found = THPVariable_Unpack(result.ptr());
    const at::Tensor dense = found.contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    return dense.is_same(found) ? result : steal(THPVariable_Wrap(dense));
  }
};

struct State {
  std::vector<Param> params;
  Py_ssize_t positional = 0;  // parameters that may be passed by position
  bool lowers = false;        // autocast casts its arguments to a dtype of the thread's
  bool open = true;           // false at the end of the process, which Python's tables handle
  Table table;
  Rare rare;
  Ref near;       // the Python path's table, with which these are emptied
  Ref python;     // the generated __call__
  Ref reference;  // torch's own function, as a plan is found
  Ref check;      // raises unless a call is valid
  Own own;

  int visit(visitproc visit, void* arg) const {
    for (const Ref* one : {&near, &python, &reference, &check, &own.function}) Py_VISIT(one->ptr());
    Py_VISIT(rare.shapes());
    return table.visit(visit, arg);
  }
};

using Lookup = Callable<State>;

// Binds a call as the generated __call__ would; borrowed references, of which `made` holds those that nothing else
// does. Returns false where Python must bind.
bool bind_call(const State& state, PyObject* const* args, Py_ssize_t count, PyObject* kwnames, PyObject** bound,
               std::vector<Ref>& made) {
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
    if (!bound[i]) return false;
    if (bound[i] != Py_None || param.read.is_none()) continue;
    made.push_back(steal(PyObject_CallOneArg(param.read.ptr(), bound[0])));
    if (!made.back()) return PyErr_Clear(), false;
    bound[i] = made.back().ptr();
  }
  return true;
}

PyObject* by_python(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Ref function = Lookup::of(self).python;
  if (!function) return PyErr_Format(PyExc_RuntimeError, "this operator was never adopted");
  const Ref method = steal(PyMethod_New(function.ptr(), self));
  return method ? PyObject_Vectorcall(method.ptr(), args, nargsf, kwnames) : nullptr;
}

// The error that is set, with its traceback, no longer set.
Ref taken() {
  const pybind11::error_already_set error;
  if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  return error.value();
}

// Reads a call. Returns false where only the Python path serves it.
bool read(const State& state, Asked& asked) {
  try {
    return state.open && asked.read(state.lowers);
  } catch (const std::exception&) {  // a tensor that torch refuses to describe: the Python path says why
    return false;
  }
}

// Whether the operator is defined for a call. Returns false where it isn't, which Python says, or with an error set.
bool is_valid(const State& state, PyObject* const* bound) {
  PyObject* given[MOST];
  std::vector<Ref> tuples;
  for (size_t i = 0; i < state.params.size(); ++i) {
    given[i] = bound[i];
    if (!PyList_CheckExact(bound[i])) continue;
    tuples.push_back(steal(PyList_AsTuple(bound[i])));
    if (!(given[i] = tuples.back().ptr())) return false;
  }
  if (steal(PyObject_Vectorcall(state.check.ptr(), given, state.params.size(), nullptr))) return true;
  if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return false;
}

// Finds a call's plan and key, or torch's function and None where it is met rarely. False: Python's, or an error set.
bool look_up(State& state, PyObject* const* bound, Found& found) {
  Asked asked{state.params, bound};
  const bool open = state.open && asked.now.read(state.lowers);
  if (const Entry* last = open ? state.table.last(asked) : nullptr) return found = *last, true;
  if (!open || !read(state, asked)) return false;
  if (const Entry* entry = state.table.find(asked))
    found = *entry;
  else if (state.rare.serves(asked, [&] { return is_valid(state, bound); }))
    found = {state.reference};
  return bool{found.parts};
}

// Whether a plan calls `reference`, maybe behind a switch: a partial, whose function is replaced as torch's turn ends.
bool leads_to(PyObject* plan, PyObject* reference) {
  static PyObject* const partial = Ref(pybind11::module_::import("functools").attr("partial")).release().ptr();
  static const Py_ssize_t place = [] {  // of a member, which is read without a search
    PyObject* const found = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(partial)->tp_dict, "func");
    const bool member = found && Py_TYPE(found) == &PyMemberDescr_Type;
    return member ? reinterpret_cast<PyMemberDescrObject*>(found)->d_member->offset : 0;
  }();
  if (plan == reference) return true;
  return place && reinterpret_cast<PyObject*>(Py_TYPE(plan)) == partial &&
         *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(plan) + place) == reference;
}

// Calls torch's own function as the caller wrote the call. Null without an error where the reference is to serve it.
PyObject* by_torch(const State& state, const Found& found, PyObject* const* bound, PyObject* const* args, size_t nargsf,
                   PyObject* kwnames) {
  const Own& own = state.own;
  if (!own.takes(PyVectorcall_NARGS(nargsf), kwnames, bound, state.params.size()) ||
      !leads_to(found.part(2), PyTuple_GET_ITEM(state.reference.ptr(), 1)))
    return nullptr;
  const Excluding without(found.excluded);
  Ref result = steal(PyObject_Vectorcall(own.function.ptr(), args, nargsf, kwnames));
  try {
    if (result) result = own.formed(std::move(result), bound[0]);
  } catch (const std::exception&) {
    result = Ref();
  }
  if (!result && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
    PyErr_Clear();  // the reference raises it again
  return result.release().ptr();
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  State& state = Lookup::of(self);
  PyObject* all[4 + MOST];  // room for what methods take before the arguments
  PyObject** const bound = all + 4;
  std::vector<Ref> made;
  if (!bind_call(state, args, PyVectorcall_NARGS(nargsf), kwnames, bound, made))
    return by_python(self, args, nargsf, kwnames);
  const size_t count = state.params.size();
  Found found;  // the plan outlives a change of the table by what it calls
  if (!look_up(state, bound, found)) {
    static PyObject* const far = PyUnicode_InternFromString("far");
    all[3] = self;
    return PyErr_Occurred() ? nullptr : PyObject_VectorcallMethod(far, all + 3, 1 + count, nullptr);
  }
  if (PyObject* const result = by_torch(state, found, bound, args, nargsf, kwnames)) return result;
  if (PyErr_Occurred()) return nullptr;
  PyObject* const result = [&] {
    const Excluding without(found.excluded);
    return PyObject_Vectorcall(found.part(2), bound, count, nullptr);
  }();
  if (result) return result;
  static PyObject* const raised = PyUnicode_InternFromString("raised");
  const Ref error = taken();
  all[0] = self, all[1] = found.part(0), all[2] = found.part(1), all[3] = error.ptr();
  return PyObject_VectorcallMethod(raised, all, 4 + count, nullptr);
}

// The arguments of a call, which Python gives as a tuple; null with an error set.
PyObject* const* all_of(const State& state, PyObject* args) {
  if (PyTuple_Check(args) && PyTuple_GET_SIZE(args) == static_cast<Py_ssize_t>(state.params.size()))
    return PySequence_Fast_ITEMS(args);
  PyErr_Format(PyExc_TypeError, "expected a tuple of all %zu arguments", state.params.size());
  return nullptr;
}

// admit(near, key, plan, args, inner, excluded): adds a plan, unless `near` was replaced since it was found.
PyObject* admit(PyObject* self, PyObject* given) {
  State& state = Lookup::of(self);
  PyObject *near, *key, *plan, *args, *inner;
  unsigned long long excluded;
  if (!PyArg_ParseTuple(given, "OOOOOK", &near, &key, &plan, &args, &inner, &excluded)) return nullptr;
  Asked asked{state.params, all_of(state, args)};
  Found found{steal(PyTuple_Pack(3, key, plan, inner)), excluded};
  if (!asked.args || !found.parts) return nullptr;
  if (near != state.near.ptr() || !read(state, asked)) Py_RETURN_NONE;
  try {
    state.table.add(asked.hash, std::make_unique<Entry>(asked, std::move(found)));
  } catch (const std::invalid_argument&) {  // no guard can be made: such calls are found by their key
  }
  Py_RETURN_NONE;
}

// find(*args): the key of a call with all arguments, its plan, and what is called in its place; or None.
PyObject* find(PyObject* self, PyObject* args) {
  State& state = Lookup::of(self);
  PyObject* const* bound = all_of(state, args);
  if (!bound) return nullptr;
  Found found;
  if (look_up(state, bound, found)) return found.parts.release().ptr();
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

// rarely(shapes, args): returns how often torch served such a call; with `shapes`, its family may wait.
PyObject* rarely(PyObject* self, PyObject* given) {
  State& state = Lookup::of(self);
  PyObject *shapes, *args;
  if (!PyArg_ParseTuple(given, "OO", &shapes, &args)) return nullptr;
  Asked asked{state.params, all_of(state, args)};
  if (!asked.args) return nullptr;
  return PyLong_FromSize_t(read(state, asked) ? state.rare.met(asked, shapes == Py_None ? Ref() : share(shapes)) : 0);
}

PyObject* drop_counts(PyObject* self, PyObject*) {
  Lookup::of(self).rare.clear();
  Py_RETURN_NONE;
}

PyObject* size(PyObject* self, PyObject*) { return PyLong_FromSize_t(Lookup::of(self).table.size()); }

PyObject* get_near(PyObject* self, void*) {
  PyObject* near = Lookup::of(self).near.ptr();
  return near ? Py_NewRef(near) : PyErr_Format(PyExc_AttributeError, "near");
}

int set_near(PyObject* self, PyObject* value, void*) {
  State& state = Lookup::of(self);
  state.open = value && PyDict_CheckExact(value);  // another class ends the calling thread at a look-up
  Ref before = std::exchange(state.near, share(value));
  state.table.clear();
  return 0;
}
int clear(PyObject* self) { return set_near(self, nullptr, nullptr); }

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  return Lookup::make(type, call, std::make_unique<State>());
}

PyMethodDef methods[] = {
    {"admit", admit, METH_VARARGS, "admit(near, key, plan, args, inner, excluded): add a plan; see Operator.admit."},
    {"find", find, METH_VARARGS, "find(*args): return a call's key, plan, and what is called in its place, or None."},
    {"rarely", rarely, METH_VARARGS, "rarely(shapes, args): let calls like this one, of other sizes, be torch's."},
    {"drop_counts", drop_counts, METH_NOARGS, "drop_counts(): no call may wait from now on."},
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

namespace {

Ref interned(const Ref& name) {
  PyObject* found = Py_NewRef(name.ptr());
  PyUnicode_InternInPlace(&found);
  return steal(found);
}

State& state_of(const Ref& self) {
  if (!PyObject_TypeCheck(self.ptr(), &LookupType)) throw pybind11::type_error("takes an operator");
  return Lookup::of(self.ptr());
}

}  // namespace

void own(Ref self, Ref function, Py_ssize_t most, const std::vector<Ref>& names, char form, bool single) {
  State& state = state_of(self);
  state.own = {function, most, {}, Form(form), single};
  for (const Ref& name : names) state.own.names.push_back(interned(name));
}

void adopt(Ref self, const std::vector<GivenParam>& params, bool lowers, Ref python, Ref reference, Ref check,
           char holds) {
  State& state = state_of(self);
  if (params.size() > MOST || !state.params.empty())
    throw pybind11::value_error("an operator is adopted once, with at most " + std::to_string(MOST) + " parameters");
  for (const auto& [name, kind, standard, required, keyword, read] : params) {
    state.params.push_back({interned(name), Kind(kind), required ? Ref() : standard, read});
    if (!keyword) state.positional = static_cast<Py_ssize_t>(state.params.size());
  }
  state.lowers = lowers;
  state.python = python, state.check = check, state.rare.holds = Holds(holds);
  state.reference = pybind11::make_tuple(pybind11::none(), reference, reference);
  // Only the slots of the class change. Its __call__ stays Python's, which compilers trace and signatures show.
  PyTypeObject* type = Py_TYPE(self.ptr());
  type->tp_call = PyVectorcall_Call;
  type->tp_vectorcall_offset = offsetof(Lookup, vectorcall);
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
}

}  // namespace nxcore
