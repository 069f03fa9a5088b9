// Table: the plans of an operator behind their guards. Used with the interpreter's lock held.
#pragma once
#include <memory>
#include <unordered_map>

#include "guard.h"

namespace nxcore {

constexpr int MOST = 32;           // parameters of an operator
constexpr size_t ALIKE = 8;        // plans of calls that look alike, as in the Python path
constexpr size_t CAPACITY = 4096;  // plans of an operator

// What a parameter may be; the letters are those of nxcore.call.native.
enum class Kind : char { tensor = 't', many = 'm', operand = 'o', scalar = 's', fixed = 'f', size = 'z', out = 'u' };

struct Param {
  Ref name;  // interned
  Kind kind;
  Ref standard;  // the default; none where the parameter is required, or Python draws its default
  Ref read;  // from the first argument to what None stands for, of objects that live as long as the process; or None
};

// A call with all arguments, which are borrowed. No code of a program may run while it is used.
struct Asked {
  const std::vector<Param>& params;
  PyObject* const* args;
  Around now = {};
  uint64_t hash = 0;  // what tables are searched by

  // Reads what is in force, and the hash. Returns false where only the Python path serves the call.
  bool read(bool lowers);
  // Mixes what `apart` tells apart; the values of numbers that one plan is for into `numbers`.
  bool mix_all(Apart apart, uint64_t& hash, uint64_t& numbers) const;
};

// Guards one argument.
class ArgumentGuard {
 public:
  ArgumentGuard(Kind kind, PyObject* value);
  bool passes(PyObject* value) const;

 private:
  enum class Form { tensor, sequence, of_class, value };
  Form form_;
  std::vector<TensorGuard> tensors_;
  Ref value_;  // a class, or a value that the plan is specialised on: plain data, in no cycle
};

// A plan's key, the plan, and what is called: itself, or under autocast what it runs while these dispatch keys are
// excluded. They are one tuple, so that calls of several threads write to one reference count.
struct Found {
  Ref parts;
  uint64_t excluded = 0;
  PyObject* part(int i) const { return PyTuple_GET_ITEM(parts.ptr(), i); }
};

struct Entry : Found {
  // Throws std::invalid_argument where no guard can be made.
  Entry(const Asked& asked, Found found);

  Around around;
  std::vector<ArgumentGuard> guards;

  bool passes(const Asked& asked) const;
  int visit(visitproc visit, void* arg) const {
    for (const Ref* held : {&around.preference, &parts}) Py_VISIT(held->ptr());
    return 0;
  }
};

class Table {
 public:
  // The entry whose guards pass, or null. It is valid until the table changes.
  const Entry* find(const Asked& asked) const;
  // Adds an entry, which is found before those that look alike.
  void add(uint64_t hash, std::unique_ptr<Entry> entry);
  void clear() { size_ = 0, static_cast<void>(std::exchange(entries_, {})); }  // empty before a plan is freed
  size_t size() const { return size_; }
  int visit(visitproc visit, void* arg) const;

 private:
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Entry>>> entries_;
  size_t size_ = 0;
};

}  // namespace nxcore
