// Table: the plans of an operator behind their guards. Used with the interpreter's lock held.
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "guard.h"

namespace nxcore {

constexpr int MOST = 32;           // parameters of an operator
constexpr size_t ALIKE = 8;        // plans of calls that look alike, as in the Python path
constexpr size_t CAPACITY = 4096;  // plans of an operator

// What a parameter may be; the letters are those of nxcore.call.native.
enum class Kind : char { tensor = 't', many = 'm', operand = 'o', scalar = 's', fixed = 'f', out = 'u' };

struct Param {
  Ref name;  // interned
  Kind kind;
  Ref standard;  // the default; none where the parameter is required
  bool keyword;
  bool drawn;  // the default is drawn anew for each call, by the Python path
};

// Guards one argument.
class ArgumentGuard {
 public:
  // Throws std::invalid_argument where no guard can be made.
  ArgumentGuard(Kind kind, PyObject* value);
  bool passes(PyObject* value) const;
  int visit(visitproc visit, void* arg) const;

 private:
  enum class Form { none, tensor, sequence, of_class, value };
  Form form_;
  std::vector<TensorGuard> tensors_;
  Ref value_;  // a class, or a value that the plan is specialised on
};

struct Entry {
  Around around;
  std::vector<ArgumentGuard> guards;
  Ref key, plan;

  bool passes(const Around& now, PyObject* const* args) const;
  int visit(visitproc visit, void* arg) const;
};

class Table {
 public:
  // Finds what the table is searched by. Returns false where only the Python path serves a call.
  bool hash(const std::vector<Param>& params, const Around& now, PyObject* const* args, uint64_t& hash) const;
  // The entry whose guards pass, or null. It is valid until the table changes.
  const Entry* find(uint64_t hash, const Around& now, PyObject* const* args) const;
  void add(uint64_t hash, std::unique_ptr<Entry> entry, PyObject* const* args);
  void clear();
  size_t size() const { return size_; }
  int visit(visitproc visit, void* arg) const;

 private:
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Entry>>> entries_;
  size_t size_ = 0;
};

}  // namespace nxcore
