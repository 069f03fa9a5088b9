// Program: what a plan does without the interpreter: reads arguments, allocates, runs machine code.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "python.h"

namespace nxcore {

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

// Whether a node of autograd runs in this thread: its gradients may be parts of one allocation. And where they go
// without objects of Python, which one thread would make and another free: empty where Python's are returned.
inline thread_local bool within_node = false;
inline thread_local std::vector<at::Tensor>* gradients = nullptr;

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

// Reads a program from the tuple that nxcore.interop.program makes. Throws where it isn't one.
std::unique_ptr<Program> program_of(PyObject* given);

// Reads a call's arguments. Returns false where the program isn't made for them.
bool reads(const Program& program, PyObject* const* args, size_t count, Call& call);

// Allocates and runs without the interpreter's lock. Returns false where a function fails.
bool runs(const Program& program, Call& call);

}  // namespace nxcore
