// Program: what a plan does without the interpreter: reads arguments, allocates, runs machine code.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "guard.h"

namespace nxcore {

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "arguments are passed by the calling conventions of x86-64 (System V) and AArch64"
#endif

constexpr size_t DOUBLES = 8;    // as many as either convention passes in registers
constexpr size_t WORDS = 96;     // integers and addresses of a function of the CPU
constexpr size_t BYTES = 32768;  // of a kernel's parameters, as the driver allows
constexpr int64_t ALIGNED = 16;

// Functions of the CUDA driver, or others in their place: no header and no library of CUDA is needed.
struct Driver {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*context)(void**), (*push)(void*), (*pop)(void**), (*capturing)(void*, int*);
};

// What an argument of a call must be; the letters are those of nxcore.interop.program.
enum class Given : char { tensor = 't', many = 'm', equal = 'e', any = 'a' };

// What it must be; the number of its tensors, or the value that is required; whether a tensor may have no node.
using Argument = std::tuple<char, Ref, bool>;

// The dtype, sizes and strides of a tensor that is made; which earlier one's memory it is in, and where, in elements.
using Fresh = std::tuple<at::ScalarType, std::vector<int64_t>, std::vector<int64_t>, std::optional<size_t>, int64_t>;

// Where a step's block takes an address, which one (of an argument's tensor, of a fresh one or of a ticket; past
// these, of the block itself), and by how much it is shifted.
using Hole = std::tuple<size_t, size_t, int64_t>;

// One function and its arguments: a kernel's parameters, or integers of 64 bits and floating numbers.
struct Step {
  void* function;
  std::string block;
  std::vector<Hole> holes;
  std::vector<unsigned> shape;     // grid, block, bytes of shared memory; empty on the CPU
  std::vector<size_t> parameters;  // where each begins in the block; on the CPU, as many integers are passed
  std::string floats;              // 8 bytes each
};

// Whether a node of autograd runs in this thread: its gradients may be parts of one allocation.
inline thread_local bool within_node = false;

struct Program {
  std::vector<Argument> arguments;
  std::vector<Fresh> fresh;
  std::vector<int64_t> tickets;  // of so many zeros each, which launches of one stream share, and put back
  std::vector<Step> steps;
  std::vector<std::pair<size_t, std::vector<int64_t>>> views;  // results in an argument's memory: its place, and sizes
  Ref results, keep;  // results: numbers of fresh tensors, tickets and views, and None, in tuples and lists
  at::Device device = at::kCPU;
  at::Allocator* allocator;  // torch's, which lives as long as the process
  bool together = false;     // whether fresh tensors are parts of others, as a node's may be
  bool aligned;              // whether all arguments must lie at multiples of 16 bytes
  void* context = nullptr;   // of a GPU
  Driver driver = {};
  int (*count)() = nullptr;  // threads of the calling thread's team; null without one
  void (*set_count)(int) = nullptr;
  int most = 1;
  bool alone;  // whether torch had one thread when the plan was made
  pid_t process = getpid();
};

// What a call brings, and what is made for it.
struct Call {
  c10::SmallVector<int64_t, 64> addresses;
  c10::SmallVector<at::Tensor, 24> made;
  void* stream = nullptr;
};

// Integers and floating numbers go to separate registers, and integers beyond them to the stack in order. So
// their order among each other is of no importance, and neither are more of them than a function takes.
template <size_t... I>
int invoke(void* address, const int64_t* words, const double* d, std::index_sequence<I...>) {
  using Function = int (*)(decltype(static_cast<void>(I), int64_t())..., double, double, double, double, double, double,
                           double, double);
  return reinterpret_cast<Function>(address)(words[I]..., d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]);
}

inline int invoke(void* address, const int64_t* words, size_t count, const double* d) {
  if (count <= 12) return invoke(address, words, d, std::make_index_sequence<12>());
  if (count <= 48) return invoke(address, words, d, std::make_index_sequence<48>());
  return invoke(address, words, d, std::make_index_sequence<WORDS>());
}

// Zeros of a stream. They are never freed: CUDA may end before.
inline at::Tensor ticket(const Program& program, int64_t count, void* stream) {
  const at::TensorOptions options = at::TensorOptions(program.device).dtype(at::kInt);
  if (program.device.is_cpu()) return at::zeros({count}, options);
  static auto* const all = new std::map<std::pair<int, void*>, at::Tensor>;
  static auto* const lock = new std::mutex;
  const std::lock_guard<std::mutex> locked(*lock);
  at::Tensor& found = (*all)[{program.device.index(), stream}];
  if (!found.defined() || found.numel() < count) found = at::zeros({count}, options);
  return found;
}

inline bool runs(const Program& program, const Step& step, const Call& call) {
  alignas(ALIGNED) char block[BYTES];
  std::memcpy(block, step.block.data(), step.block.size());
  for (const Hole& hole : step.holes) {
    const auto& [at, index, shift] = hole;
    const int64_t itself = reinterpret_cast<int64_t>(block);
    const int64_t address = (index < call.addresses.size() ? call.addresses[index] : itself) + shift;
    std::memcpy(block + at, &address, sizeof address);
  }
  if (step.shape.empty()) {
    double d[DOUBLES] = {};
    std::memcpy(d, step.floats.data(), step.floats.size());
    return invoke(step.function, reinterpret_cast<int64_t*>(block), step.parameters.size(), d) == 0;
  }
  c10::SmallVector<void*, 32> parameters;
  for (const size_t at : step.parameters) parameters.push_back(block + at);
  const unsigned* s = step.shape.data();
  return program.driver.launch(step.function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], call.stream, parameters.data(),
                               nullptr) == 0;
}

// Reads the address of a tensor, which may be required to have no node. Returns false where it can't be taken.
inline bool add(const Program& program, const at::Tensor& tensor, bool leaf, Call& call) {
  if (tensor.device() != program.device || (leaf && tensor.grad_fn())) return false;
  call.addresses.push_back(reinterpret_cast<int64_t>(tensor.const_data_ptr()));
  return !program.aligned || call.addresses.back() % ALIGNED == 0;
}

inline bool read(const Program& program, const Argument& argument, PyObject* value, Call& call) {
  const auto& [what, wanted, leaf] = argument;
  const Given given = static_cast<Given>(what);
  if (given == Given::any) return true;
  if (given == Given::equal) return alike(value, wanted.ptr());
  const auto items = items_of(value);
  if ((given == Given::many) != is_sequence(value) || items.size() != PyLong_AsSize_t(wanted.ptr())) return false;
  return std::all_of(items.begin(), items.end(), [&, leaf = leaf](PyObject* item) {
    return is_tensor(item) && add(program, THPVariable_Unpack(item), leaf, call);
  });
}

// The thread's current stream as the driver has it. Asks Python, so it may set an error, where the thread's last call
// was on another one: torch's streams keep their names, and live as long as the process.
inline void* stream_of(at::Device device) {
  static thread_local std::pair<c10::Stream, void*> last{c10::Stream(c10::Stream::DEFAULT, at::kCPU), nullptr};
  const c10::Stream now = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (now == last.first) return last.second;
  const Ref found = steal(PyObject_CallFunction(environment->raw_stream.ptr(), "i", int{device.index()}));
  return found ? (last = {now, PyLong_AsVoidPtr(found.ptr())}).second : nullptr;
}

// As torch's own kernels allocate, without its dispatcher; on a GPU, its device is the current one.
inline at::Tensor empty(const Program& program, const Fresh& fresh, const Call& call) {
  const auto& [dtype, sizes, strides, whole, place] = fresh;
  const c10::DispatchKeySet keys(program.device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
  if (!whole) return at::detail::empty_strided_generic(sizes, strides, program.allocator, keys, dtype);
  at::Storage memory = call.made[*whole].storage();
  at::Tensor part = at::detail::make_tensor<at::TensorImpl>(std::move(memory), keys, at::scalarTypeToTypeMeta(dtype));
  part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, place);
  return part;
}

// Reads what else a call depends on. Returns false where the program can't run now.
inline bool ready(const Program& program, Call& call) {
  // A forked child may not use the parent's threads, and the function has a fixed idea of whether it has any.
  if (program.count && (program.process != getpid() || (at::get_num_threads() == 1) != program.alone)) return false;
  if (!program.device.is_cuda()) return true;
  call.stream = stream_of(program.device);
  if (PyErr_Occurred()) return PyErr_Clear(), false;
  int capturing = 0;  // a graph's replays may overlap other launches, so its tickets are its own
  return program.tickets.empty() || (program.driver.capturing(call.stream, &capturing) == 0 && !capturing);
}

// Reads a call's arguments. Returns false where the program isn't made for them.
inline bool reads(const Program& program, PyObject* const* args, size_t count, Call& call) {
  if (count < program.arguments.size() || (program.together && !within_node)) return false;
  call.addresses.clear();
  for (size_t i = 0; i < program.arguments.size(); ++i)
    if (!read(program, program.arguments[i], args[i], call)) return false;
  return ready(program, call);
}

// Allocates and runs. The interpreter's lock isn't needed. Returns false where a function fails.
inline bool runs(const Program& program, Call& call) {
  const c10::OptionalDeviceGuard there(program.device.is_cpu() ? std::nullopt : std::make_optional(program.device));
  for (const Fresh& fresh : program.fresh) call.made.push_back(empty(program, fresh, call));
  for (const int64_t count : program.tickets) call.made.push_back(ticket(program, count, call.stream));
  for (const at::Tensor& one : call.made) call.addresses.push_back(reinterpret_cast<int64_t>(one.data_ptr()));
  // As many threads as torch has now.
  const int before = program.count ? program.count() : 0;
  const int wanted = program.count ? std::min(at::get_num_threads(), program.most) : 0;
  if (before != wanted) program.set_count(wanted);
  // The GPU's context: another device's may be current, or none in a new thread.
  void* now = nullptr;
  const bool current = !program.context || (program.driver.context(&now) == 0 && now == program.context);
  const bool pushed = !current && program.driver.push(program.context) == 0;
  const auto restored = c10::make_scope_exit([&] {
    if (before != wanted) program.set_count(before);
    if (pushed) program.driver.pop(&now);
  });
  return (current || pushed) && std::all_of(program.steps.begin(), program.steps.end(),
                                            [&](const Step& step) { return runs(program, step, call); });
}

// Reads a program from the tuple that nxcore.interop.program makes. Throws where it isn't one.
inline std::unique_ptr<Program> program_of(PyObject* given) {
  using Steps =
      std::tuple<uintptr_t, std::string, std::vector<Hole>, std::vector<unsigned>, std::vector<size_t>, std::string>;
  using Addresses = std::vector<uintptr_t>;
  auto made = std::make_unique<Program>();
  auto [steps, context, driver, team] = std::tuple<std::vector<Steps>, uintptr_t, Addresses, Addresses>();
  std::tie(made->arguments, made->fresh, made->tickets, steps, made->views, made->results, made->device, made->aligned,
           context, driver, team, made->keep) =
      pybind11::cast<std::tuple<std::vector<Argument>, std::vector<Fresh>, std::vector<int64_t>, std::vector<Steps>,
                                decltype(made->views), Ref, at::Device, bool, uintptr_t, Addresses, Addresses, Ref>>(
          pybind11::handle(given));
  for (auto& [function, block, holes, shape, parameters, floats] : steps) {
    const bool fits = shape.empty() ? parameters.size() <= WORDS : shape.size() == 7;
    TORCH_CHECK_VALUE(fits && block.size() <= BYTES && floats.size() <= DOUBLES * sizeof(double),
                      "a launch has a grid, a block and shared memory; a function takes at most ", WORDS, " integers, ",
                      DOUBLES, " floating numbers, ", BYTES, " bytes");
    for (const auto& [at, index, shift] : holes)
      TORCH_CHECK_VALUE(at + sizeof(int64_t) <= block.size(), "an address has no place");
    made->steps.push_back({reinterpret_cast<void*>(function), block, holes, shape, parameters, floats});
  }
  if (driver.size() * sizeof(void*) == sizeof(Driver)) std::memcpy(&made->driver, driver.data(), sizeof(Driver));
  if (team.size() == 3) {
    made->count = reinterpret_cast<int (*)()>(team[0]);
    made->set_count = reinterpret_cast<void (*)(int)>(team[1]);
    made->most = static_cast<int>(team[2]);
  }
  for (const Fresh& one : made->fresh) made->together |= std::get<3>(one).has_value();
  made->allocator = at::empty({0}, made->device).storage().allocator();
  made->context = reinterpret_cast<void*>(context);
  made->alone = at::get_num_threads() == 1;
  return made;
}

}  // namespace nxcore
