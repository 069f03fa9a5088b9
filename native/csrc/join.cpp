// Join: a forward plan and a backward operator as one node of autograd.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "program.h"
#include "table.h"
#include "types.h"

namespace nxcore {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePtr = decltype(torch::autograd::Edge::function);  // its class depends on torch's version

constexpr size_t MOST_TENSORS = 64;  // of a call: the bits of a mask

// What follows from the problem; the same for all calls of a plan.
struct Plan {
  Ref owner;     // nxcore.interop.autograd.Differentiable: the specification, called where this can't serve
  Ref forward;   // takes the operator's arguments
  Ref backward;  // takes the backward operator's arguments
  std::vector<std::pair<Py_ssize_t, bool>> places;  // of tensors among the arguments; whether a sequence
  std::vector<Py_ssize_t> numbers;                  // arguments that may change from call to call
  std::vector<std::pair<size_t, char>> kept;        // saved tensors, among all tensors; h: as they are, c: as copies,
                                                    // u: without a watch for writes, as no value is read
  bool inner;    // forward returns the result, and what is saved for the backward pass alone
  bool keeps;    // forward returns a tuple, of which the first has a gradient, and the others are saved
  bool result;   // the result is saved
  std::vector<size_t> copied;  // of the other results, those that are saved as copies
  bool checks;   // whether to look which gradients this pass needs
  size_t count;  // of the operator's arguments
  uint64_t id;   // no two plans of a process have the same one
  // By the gradients that a pass needs: see Differentiable.order; None where Python makes the arguments.
  std::map<uint64_t, Ref> orders;

  int visit(visitproc visit, void* arg) const {
    for (const Ref* one : {&owner, &forward, &backward}) Py_VISIT(one->ptr());
    for (const auto& [mask, order] : orders) Py_VISIT(order.ptr());
    return 0;
  }
};

using Join = Callable<Plan>;

// A pointer to a node, as torch passes it: see made().
template <typename Pointer, typename Given>
Pointer pointer_to(Given* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return node->shared_from_this();
  else
    return Pointer::reclaim_copy(node);
}

struct Node : torch::autograd::Node {
  Ref join;                          // the Join, which holds the plan
  Ref numbers;                       // a tuple
  std::vector<SavedVariable> saved;  // read and cleared with the node's mutex held, as is the result
  std::optional<SavedVariable> result;
  PyObject* compiler = nullptr;      // what traces this pass, borrowed

  // Any thread frees a node. Its Python objects are dropped with the lock held, and not once the interpreter has ended.
  ~Node() override {
    if (Py_IsInitialized()) {
      const pybind11::gil_scoped_acquire locked;
      join = numbers = Ref();
    } else {
      join.release(), numbers.release();
    }
  }
  std::string name() const override { return "_JoinBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> locked(mutex_);
    for (SavedVariable& one : saved) one.reset_data();
    if (result) result->reset_data();
  }
  variable_list apply(variable_list&& grads) override;
  // For torch._dynamo.compiled_autograd: what a graph is kept for, and a pass that is traced.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    const pybind11::gil_scoped_acquire locked;
    const Plan& plan = Join::of(join.ptr());
    args.collect(plan.id), args.collect(mask(plan.checks)), args.collect(std::string(pybind11::repr(numbers)));
    args.collect(saved, /*is_output=*/false);
    if (result) args.collect(*result, /*is_output=*/true);
  }
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& swap) override {
    swap.before(saved), compiler = swap.get_py_compiler();
    if (result) swap.before(*result);
    variable_list found = apply(variable_list(grads));
    swap.after(saved);
    if (result) swap.after(*result);
    return found;
  }
  // What a pass has: the gradient, and what was saved, of which a hook unpacks each tensor once.
  variable_list unpacked(const at::Tensor& grad) {
    const std::lock_guard<std::mutex> locked(mutex_);
    variable_list all{grad};
    all.reserve(1 + saved.size());
    for (const SavedVariable& one : saved) all.push_back(one.unpack());
    if (result) all.push_back(result->unpack(pointer_to<NodePtr>(this)));
    return all;
  }
  // Which inputs get a gradient; with `checks`, only those that this backward pass needs.
  uint64_t mask(bool checks) const {
    uint64_t all = 0;
    for (size_t i = 0; i < num_outputs(); ++i)
      if (checks ? task_should_compute_output(i) : should_compute_output(i)) all |= uint64_t{1} << i;
    return all;
  }
};

// Whether a backward pass is an ordinary one: nothing records it, no autocast, a gradient with memory.
bool plain(const at::Tensor& grad) {
  const c10::DispatchKeySet off = c10::impl::tls_local_dispatch_key_set().excluded_;
  const c10::DispatchKeySet odd({c10::DispatchKey::Python, c10::DispatchKey::Batched, c10::DispatchKey::ZeroTensor,
                                 c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return !c10::GradMode::is_enabled() && off.has_all(c10::autocast_dispatch_keyset) && !grad.key_set().has_any(odd);
}

// A view of all of `grad` becomes `grad`: torch would make it a leaf's gradient without a copy, in shared memory.
at::Tensor itself(const at::Tensor& found, const at::Tensor& grad) {
  const bool same = found.defined() && !found.is_same(grad) && found.numel() && found.sizes().equals(grad.sizes()) &&
                    found.strides().equals(grad.strides()) && found.scalar_type() == grad.scalar_type() &&
                    found.const_data_ptr() == grad.const_data_ptr();
  return same ? grad : found;
}

// Reads gradients, nested as the backward operator returns them, None for a missing one.
bool read(PyObject* result, variable_list& found) {
  if (is_sequence(result)) {
    const auto items = items_of(result);
    return std::all_of(items.begin(), items.end(), [&](PyObject* item) { return read(item, found); });
  }
  if (result != Py_None && !THPVariable_Check(result)) {
    PyErr_Format(PyExc_TypeError, "a gradient is a tensor or None, got %.80s", Py_TYPE(result)->tp_name);
    return false;
  }
  found.push_back(result == Py_None ? at::Tensor() : THPVariable_Unpack(result));
  return true;
}

[[noreturn]] void raise() {
  python_error error;
  error.persist();
  throw error;
}

variable_list Node::apply(variable_list&& grads) {
  PyObject* const traces = std::exchange(compiler, nullptr);
  const size_t count = num_outputs();
  if (!grads[0].defined()) return variable_list(count);
  variable_list tensors = unpacked(grads[0]), found;
  const pybind11::gil_scoped_acquire locked;
  Plan& plan = Join::of(join.ptr());
  const uint64_t wanted = mask(plan.checks);
  const bool ordinary = !traces && plain(grads[0]);
  const auto wrapped = [&](size_t i) { return THPVariable_Wrap(tensors[i]); };
  const auto ask = [&](const char* method) {
    const auto flag = [wanted](size_t i) { return Py_NewRef(wanted >> i & 1 ? Py_True : Py_False); };
    const Ref flags = tuple_of(count, flag), name = steal(PyUnicode_FromString(method)), grad = steal(wrapped(0));
    const Ref kept = tuple_of(tensors.size() - 1, [&](size_t i) { return wrapped(i + 1); });
    if (!kept || !grad) raise();
    Ref answer = steal(PyObject_CallMethodObjArgs(plan.owner.ptr(), name.ptr(), grad.ptr(), flags.ptr(), kept.ptr(),
                                                  numbers.ptr(), traces, nullptr));
    if (!answer) raise();
    return answer;
  };
  Ref order = ordinary ? plan.orders[wanted] : Ref();
  if (ordinary && !order) plan.orders[wanted] = order = ask("order");
  // The backward operator's arguments: what the pass has, in the order in which Differentiable.order numbers it.
  const auto numbered = [&](size_t i) -> PyObject* {
    if (i < tensors.size()) return wrapped(i);
    i -= tensors.size();
    for (PyObject* pool : {numbers.ptr(), PyTuple_GET_ITEM(order.ptr(), 1)}) {
      const size_t size = static_cast<size_t>(PyTuple_GET_SIZE(pool));
      if (i < size) return Py_NewRef(PyTuple_GET_ITEM(pool, i));
      i -= size;
    }
    return PyErr_Format(PyExc_IndexError, "an order has too few constants");
  };
  Ref result;
  if (order && !order.is_none()) {
    const Ref args = filled(PyTuple_GET_ITEM(order.ptr(), 0), numbered);
    if (!args) raise();
    const auto restored = c10::make_scope_exit([was = std::exchange(within_node, true)] { within_node = was; });
    result = steal(PyObject_CallObject(plan.backward.ptr(), args.ptr()));
  } else {
    result = ask("gradients");
  }
  if (!result || !read(result.ptr(), found)) raise();
  found.resize(count);
  if (ordinary)
    for (at::Tensor& one : found) one = itself(one, grads[0]);
  return found;
}

// torch counts a node's references in the node itself since 2.13, and beside it before.
template <typename Pointer>
Pointer made() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return Pointer(new Node, [](auto* node) { deleteNode(node); });
  else
    return Pointer::unsafe_steal_from_new(new Node);
}

// Collects the tensors of a call. Returns false for one that is not torch's own class.
bool collect(const Plan& plan, PyObject* const* args, variable_list& flat) {
  flat.reserve(MOST_TENSORS);
  for (const auto& [place, many] : plan.places) {
    if (many != is_sequence(args[place])) return false;
    for (PyObject* item : items_of(args[place])) {
      if (!is_tensor(item)) return false;
      flat.push_back(THPVariable_Unpack(item));
    }
  }
  return true;
}

// The tensors of a forward plan's result, that with a gradient first. False for a view or an argument: torch's care.
bool fresh(const Plan& plan, PyObject* result, const variable_list& flat, variable_list& outs) {
  if (plan.inner || plan.keeps ? !PyTuple_CheckExact(result) : is_sequence(result)) return false;
  for (PyObject* item : items_of(result)) {
    if (!is_tensor(item)) return false;
    outs.push_back(THPVariable_Unpack(item));
  }
  if (outs.empty()) return false;
  for (const at::Tensor& out : outs) {
    const auto same = [&](const at::Tensor& one) { return one.is_same(out); };
    if (out.is_view() || out.requires_grad() || out.is_inference()) return false;
    if (std::any_of(flat.begin(), flat.end(), same)) return false;
  }
  return torch::autograd::isDifferentiableType(outs[0].scalar_type());
}

// What is saved of a tensor: see Plan. A second derivative goes through a copy.
at::Tensor guarded(const at::Tensor& tensor, char how) {
  if (how == 'u') return tensor.variable_data();
  if (how != 'c') return tensor;
  const c10::AutoGradMode on(true);
  return tensor.clone();
}

PyObject* joined(PyObject* self, const Plan& plan, PyObject* const* args, size_t count) {
  variable_list flat, outs;
  const auto by_python = [&] { return PyObject_Vectorcall(plan.owner.ptr(), args, count, nullptr); };
  if (!collect(plan, args, flat) || flat.size() > MOST_TENSORS || !torch::autograd::compute_requires_grad(flat))
    return by_python();
  NodePtr node = made<NodePtr>();  // before the forward plan runs: nodes are numbered in the order of calls
  Node& ours = static_cast<Node&>(*node);
  Ref result;
  {
    const c10::AutoGradMode off(false);
    result = steal(PyObject_Vectorcall(plan.forward.ptr(), args, count, nullptr));
  }
  if (!result) return nullptr;
  if (!fresh(plan, result.ptr(), flat, outs)) return by_python();
  node->set_next_edges(torch::autograd::collect_next_edges(flat));
  ours.join = share(self);
  ours.numbers = tuple_of(plan.numbers.size(), [&](size_t i) { return Py_NewRef(args[plan.numbers[i]]); });
  if (!ours.numbers) return nullptr;
  torch::autograd::set_history(outs[0], node);
  if (plan.keeps)  // the other results belong to the node too, as outputs without a gradient
    for (size_t i = 1; i < outs.size(); ++i) node->add_input_metadata(torch::autograd::Node::undefined_input());
  ours.saved.reserve(plan.kept.size() + outs.size() - 1);
  for (const auto& [i, how] : plan.kept) ours.saved.emplace_back(guarded(flat[i], how), /*is_output=*/false);
  if (plan.result) ours.result.emplace(outs[0], /*is_output=*/true);
  for (size_t i = 1; i < outs.size(); ++i) {
    const bool copies = std::find(plan.copied.begin(), plan.copied.end(), i) != plan.copied.end();
    ours.saved.emplace_back(guarded(outs[i], copies ? 'c' : 'h'), /*is_output=*/false);
  }
  return plan.inner ? Py_NewRef(PyTuple_GET_ITEM(result.ptr(), 0)) : result.release().ptr();
}

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Plan& plan = Join::of(self);
  const size_t count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  if (kwnames || count != plan.count)
    return PyErr_Format(PyExc_TypeError, "a plan takes all of the operator's arguments, got %zu", count);
  HANDLE_TH_ERRORS
  return joined(self, plan, args, count);
  END_HANDLE_TH_ERRORS
}

// Join(owner, forward, backward, places, numbers, kept, inner, keeps, result, copied, checks, count)
PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  static uint64_t plans = 0;
  using Places = std::vector<Py_ssize_t>;
  using Kept = std::vector<std::pair<size_t, char>>;
  auto [owner, forward, backward, places, numbers, kept, inner, keeps, result, copied, checks, count] =
      pybind11::cast<std::tuple<Ref, Ref, Ref, std::vector<std::pair<Py_ssize_t, bool>>, Places, Kept, bool, bool, bool,
                                std::vector<size_t>, bool, size_t>>(pybind11::handle(args));
  Plan plan{owner, forward, backward, places, numbers, kept, inner, keeps, result, copied, checks, count, ++plans, {}};
  return Join::make(type, call, std::make_unique<Plan>(std::move(plan)));
  END_HANDLE_TH_ERRORS
}

}  // namespace

PyTypeObject JoinType =
    Join::type("nxcore_native.Join", "A forward plan and a backward operator as one node of autograd.", create,
               Py_TPFLAGS_HAVE_VECTORCALL);

}  // namespace nxcore
