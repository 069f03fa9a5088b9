// Direct: a plan that runs machine code without the interpreter's lock, where one of its programs fits a call.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "callable.h"
#include "guard.h"
#include "program.h"
#include "types.h"

namespace nxcore::direct {
namespace {

struct Plan {
  Ref call;  // the callable that runs where no program fits
  std::vector<std::unique_ptr<Program>> programs;

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(call.ptr());
    for (const auto& program : programs) Py_VISIT(program->keep.ptr());  // results are numbers
    return 0;
  }
};

using Direct = Callable<Plan>;

// The tensors of a result's form in order; undefined for None.
template <typename Item>
void gather(PyObject* form, Item item, std::vector<at::Tensor>& into) {
  if (!is_sequence(form)) return into.push_back(form == Py_None ? at::Tensor() : item(PyLong_AsSize_t(form)));
  for (PyObject* one : items_of(form)) gather(one, item, into);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Plan& plan = Direct::of(self);
  auto* const into = std::exchange(gradients, nullptr);  // not of what is called below
  try {
    for (size_t i = 0; !kwnames && i < plan.programs.size(); ++i) {
      const Program& program = *plan.programs[i];
      Call made;
      if (!reads(program, args, static_cast<size_t>(PyVectorcall_NARGS(nargsf)), made)) continue;
      if (!runs(program, made)) break;
      const auto one = [&](size_t i) {
        if (i < made.made.size()) return made.made[i];
        const auto& [place, sizes] = program.views[i - made.made.size()];
        return THPVariable_Unpack(args[place]).view(sizes);
      };
      if (!into) return filled(program.results.ptr(), [&](auto i) { return THPVariable_Wrap(one(i)); }).release().ptr();
      gather(program.results.ptr(), one, *into);
      Py_RETURN_NONE;
    }
  } catch (const std::exception&) {  // torch raises the same error to the callable, with its own class
    if (into) into->clear();
  }
  return PyObject_Vectorcall(plan.call.ptr(), args, nargsf, kwnames);
}

PyObject* add(PyObject* self, PyObject* program) {
  Plan& plan = Direct::of(self);
  HANDLE_TH_ERRORS
  plan.programs.push_back(program_of(program));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* size(PyObject* self, PyObject*) { return PyLong_FromSize_t(Direct::of(self).programs.size()); }

// Direct(call)
PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* given;
  if (!PyArg_ParseTuple(args, "O", &given)) return nullptr;
  return Direct::make(type, call, std::make_unique<Plan>(Plan{share(given), {}}));
}

PyMethodDef methods[] = {
    {"add", add, METH_O, "add(program): add one of nxcore.interop.program for calls that it fits."},
    {"programs", size, METH_NOARGS, "programs(): return the number of programs."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace nxcore::direct

PyTypeObject nxcore::DirectType =
    direct::Direct::type("nxcore_native.Direct", "A plan that runs machine code without the interpreter's lock.",
                         direct::create, Py_TPFLAGS_HAVE_VECTORCALL, direct::methods);
