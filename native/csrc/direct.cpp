// Direct: a plan that runs machine code without the interpreter's lock, where one of its programs fits a call.
#include <torch/csrc/Exceptions.h>

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

// The first program that fits a call.
const Program* fitting(const Plan& plan, PyObject* const* args, Py_ssize_t count, Call& made) {
  for (size_t i = 0; i < plan.programs.size(); ++i)  // Python may run in between, and add one
    if (reads(*plan.programs[i], args, static_cast<size_t>(count), made)) return plan.programs[i].get();
  return nullptr;
}

bool unlocked(const Program& program, Call& made) {
  const pybind11::gil_scoped_release released;
  return runs(program, made);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Plan& plan = Direct::of(self);
  try {
    Call made;
    const Program* program = kwnames ? nullptr : fitting(plan, args, PyVectorcall_NARGS(nargsf), made);
    if (program && unlocked(*program, made)) {
      const auto one = [&](size_t i) {
        if (i < made.made.size()) return made.made[i];
        const auto& [place, sizes] = program->views[i - made.made.size()];
        return THPVariable_Unpack(args[place]).view(sizes);
      };
      return filled(program->results.ptr(), [&](auto i) { return THPVariable_Wrap(one(i)); }).release().ptr();
    }
  } catch (const std::exception&) {  // torch raises the same error to the callable, with its own class
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
