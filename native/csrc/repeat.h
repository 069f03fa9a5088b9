// Repeat: a backward pass as the program that its operator's plan runs, with no object of Python for each tensor.
#pragma once
#include "program.h"
#include "table.h"

namespace nxcore {

// Made, read and freed with the interpreter's lock held.
struct Repeat {
  using Tensors = std::vector<at::Tensor>;  // of a pass: the gradient of the result, then what was saved

  // Looks up the plan for the backward operator's `args`. `form` has the number of each among the tensors, the pass's
  // `numbers`, and constants. Returns null where the plan is no program, or returns what it was given.
  static std::shared_ptr<Repeat> of(PyObject* backward, PyObject* form, PyObject* args, const Tensors& tensors,
                                    const Ref& numbers) {
    const std::shared_ptr<Repeat> made(new Repeat{find_plan(backward, args), {}, numbers}, dropped);
    Call call;
    if (made->plan.call) made->direct = direct_of(made->plan.call.ptr());
    made->program = made->direct ? program_for(made->direct.ptr(), args, call) : nullptr;
    if (!made->program || !made->program->views.empty()) return PyErr_Clear(), nullptr;
    for (const at::Tensor& one : tensors) made->guards.emplace_back(steal(THPVariable_Wrap(one)).ptr());
    for (size_t i = 0; i < made->program->arguments.size(); ++i) {
      const auto& [what, wanted, leaf] = made->program->arguments[i];
      if (Given(what) != Given::tensor && Given(what) != Given::many) continue;
      for (PyObject* one : items_of(PyTuple_GET_ITEM(form, i)))
        made->addresses.emplace_back(PyLong_AsSize_t(one), leaf);
    }
    flatten(made->program->results.ptr(), made->results);
    const auto known = [&](const auto& one) { return one.first < tensors.size(); };
    return std::all_of(made->addresses.begin(), made->addresses.end(), known) ? made : nullptr;
  }

  // Reads a pass. Returns false where the operator would have to look: at another plan, other tensors or numbers.
  bool reads(PyObject* backward, const Tensors& tensors, PyObject* given, Call& call) const {
    if (!stands(backward, plan) || direct_of(plan.call.ptr()).ptr() != direct.ptr()) return false;
    if (tensors.size() != guards.size() || !alike(given, numbers.ptr()) ||
        gradients_of(tensors[0].unsafeGetTensorImpl()) > 1)
      return false;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!tensors[i].defined() || !guards[i].fits(tensors[i].unsafeGetTensorImpl())) return false;
    for (const auto& [i, leaf] : addresses)
      if (!add(*program, tensors[i], leaf, call)) return false;
    return ready(*program, call);
  }

  // Runs, without the lock, and collects the gradients. Returns false where that fails, such as without memory.
  bool runs(Call& call, Tensors& found) const {
    try {
      if (!nxcore::runs(*program, call)) return false;
    } catch (const std::exception&) {  // the operator raises it
      return false;
    }
    for (const size_t i : results) found.push_back(i < call.made.size() ? call.made[i] : at::Tensor());
    return true;
  }

  int visit(visitproc visit, void* arg) const {
    for (const Ref* one : {&plan.now.preference, &plan.call, &direct, &numbers}) Py_VISIT(one->ptr());
    return 0;
  }

  Standing plan;
  Ref direct, numbers;
  const Program* program = nullptr;                     // of the Direct
  std::vector<TensorGuard> guards = {};                 // of the tensors
  std::vector<std::pair<size_t, bool>> addresses = {};  // which tensor's the program takes; whether it may have no node
  std::vector<size_t> results = {};  // numbers of what the program makes, in order; past them for None

 private:
  static void flatten(PyObject* form, std::vector<size_t>& into) {
    if (!is_sequence(form)) return into.push_back(form == Py_None ? SIZE_MAX : PyLong_AsSize_t(form));
    for (PyObject* one : items_of(form)) flatten(one, into);
  }
  static void dropped(Repeat* repeat) {  // by any thread
    if (!Py_IsInitialized()) return;
    const pybind11::gil_scoped_acquire locked;
    delete repeat;
  }
};

}  // namespace nxcore
