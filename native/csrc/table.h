// Table: the plans of an operator behind their guards. Used with the interpreter's lock held.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
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
  bool read(bool lowers) {
    if (!now.read(lowers)) return false;
    hash = now.included;
    mix(now.grad, hash);
    return mix_all(Apart::calls, hash, hash);
  }

  // Mixes what `apart` tells apart; the values of numbers that one plan is for into `numbers`.
  bool mix_all(Apart apart, uint64_t& hash, uint64_t& numbers) const {
    const bool families = apart == Apart::families;
    for (size_t i = 0; i < params.size(); ++i) {
      PyObject* value = args[i];
      const Kind kind = params[i].kind;
      if (kind == Kind::out && value != Py_None) return false;
      if (is_tensor(value) || (kind == Kind::many && is_sequence(value))) {
        const auto items = items_of(value);
        mix(items.size() << 1 | is_tensor(value), hash);
        for (PyObject* item : families ? items : items.slice(0, std::min<size_t>(items.size(), 1)))
          if (!is_tensor(item) || !mix_tensor(item, apart, hash)) return false;
      } else if (families && kind == Kind::size && is_sequence(value)) {
        mix(items_of(value).size(), hash);
      } else if (families || kind == Kind::fixed || kind == Kind::size) {  // a number may be out of range
        const bool number = kind == Kind::scalar || kind == Kind::operand;
        if (!mix_value(value, number ? numbers : hash)) return false;
        if (number) mix(reinterpret_cast<uintptr_t>(Py_TYPE(value)), hash), mix(is_short(value), hash);
      }
    }
    return true;
  }

  // Mixes the sizes and strides of all tensors.
  void mix_layouts(uint64_t& hash) const {
    for (size_t i = 0; i < params.size(); ++i)
      for (PyObject* item : items_of(args[i])) {
        if (!is_tensor(item)) continue;
        for (const auto& numbers : {impl_of(item)->sizes(), impl_of(item)->strides()})
          for (int64_t one : numbers) mix(static_cast<uint64_t>(one), hash);
      }
  }
};

// For which other sizes a check that passed holds; the letters are those of nxcore.interop.native.
enum class Holds : char { same = 's', alike = 'a', larger = 'l' };

// The sizes of a call as a check reads them: which are equal, 0 or 1; or all, but for an image's, which may be larger.
struct Sizes {
  static constexpr size_t MOST_APART = 32;
  static constexpr int64_t LARGEST = 1 << 20;  // beyond, a product of sizes may be too large

  // Reads a call. Returns false where its check must run.
  bool read(const Asked& asked, Holds holds) {
    for (size_t i = 0; i < asked.params.size(); ++i) {
      const auto items = items_of(asked.args[i]);
      if (is_sequence(asked.args[i]) && !add(items.size(), holds)) return false;
      for (PyObject* item : items) {
        if (is_tensor(item)) {
          const at::IntArrayRef sizes = impl_of(item)->sizes();
          const size_t within = sizes.size() - (holds == Holds::larger && i == 0 && sizes.size() > 2 ? 2 : 0);
          for (const int64_t size : sizes.slice(0, within))
            if (!add(size, holds)) return false;
          if (within < sizes.size()) image = {sizes[within], sizes[within + 1]};
          if (impl_of(item)->numel() > LARGEST * LARGEST) return false;
        } else if (asked.params[i].kind == Kind::size) {
          if (!PyLong_CheckExact(item) || !add(PyLong_AsLongLong(item), holds)) return PyErr_Clear(), false;
        }
      }
    }
    return image.first < LARGEST && image.second < LARGEST;
  }

  uint64_t hash = 0;
  std::pair<int64_t, int64_t> image = {1, 1};

 private:
  bool add(int64_t size, Holds holds) {
    if (size < 0 || size >= LARGEST) return false;
    if (holds == Holds::larger || size <= 1) return mix(static_cast<uint64_t>(size), hash), true;
    const auto end = known_.begin() + count_, found = std::find(known_.begin(), end, size);
    if (found == end && count_ == MOST_APART) return false;
    if (found == end) known_[count_++] = size;
    return mix(2 + static_cast<uint64_t>(found - known_.begin()), hash), true;
  }

  std::array<int64_t, MOST_APART> known_;
  size_t count_ = 0;
};

// Guards one argument.
class ArgumentGuard {
 public:
  ArgumentGuard(Kind kind, PyObject* value) : form_(Form::value) {
    const bool number = PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
    if (kind == Kind::fixed || kind == Kind::size ||
        (value == Py_None && (kind == Kind::tensor || kind == Kind::out))) {
      value_ = share(value);
    } else if (kind == Kind::scalar || (kind == Kind::operand && number)) {
      if (!is_short(value)) throw std::invalid_argument("a number beyond 64 bits");
      form_ = Form::of_class;
      value_ = share(reinterpret_cast<PyObject*>(Py_TYPE(value)));
    } else if (kind != Kind::out && (is_tensor(value) || (kind == Kind::many && is_sequence(value)))) {
      form_ = is_tensor(value) ? Form::tensor : Form::sequence;
      for (PyObject* item : items_of(value)) {
        if (!is_tensor(item)) throw std::invalid_argument("not a tensor");
        tensors_.emplace_back(item);
      }
    } else {
      throw std::invalid_argument("no guard can be made, such as for whether out is an input");
    }
  }

  bool passes(PyObject* value) const {
    if (form_ == Form::of_class)
      return reinterpret_cast<PyObject*>(Py_TYPE(value)) == value_.ptr() && is_short(value);
    if (form_ == Form::value) return alike(value, value_.ptr());
    const auto items = items_of(value);
    if ((form_ == Form::sequence) != is_sequence(value) || items.size() != tensors_.size()) return false;
    for (size_t i = 0; i < items.size(); ++i)
      if (!tensors_[i].passes(items[i])) return false;
    return true;
  }

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

// Excludes the dispatch keys of a plan while it lives; most have none.
struct Excluding {
  explicit Excluding(uint64_t keys) {
    if (keys) guard.emplace(c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys));
  }
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard;
};

struct Entry : Found {
  // Throws std::invalid_argument where no guard can be made.
  Entry(const Asked& asked, Found found) : Found(std::move(found)), around(asked.now) {
    for (size_t i = 0; i < asked.params.size(); ++i) guards.emplace_back(asked.params[i].kind, asked.args[i]);
  }

  Around around;
  std::vector<ArgumentGuard> guards;

  bool passes(const Asked& asked) const {
    if (!(around == asked.now)) return false;
    for (size_t i = 0; i < guards.size(); ++i)
      if (!guards[i].passes(asked.args[i])) return false;
    return true;
  }
  int visit(visitproc visit, void* arg) const {
    for (const Ref* held : {&around.preference, &parts}) Py_VISIT(held->ptr());
    return 0;
  }
};

class Table {
 public:
  // The entry that was found last, if its guards pass, as in most calls. It needs no hash.
  const Entry* last(const Asked& asked) const { return last_ && last_->passes(asked) ? last_ : nullptr; }

  // The entry whose guards pass, or null. It is valid until the table changes.
  const Entry* find(const Asked& asked) {
    const auto found = entries_.find(asked.hash);
    if (found == entries_.end()) return nullptr;
    for (const auto& entry : found->second)
      if (entry->passes(asked)) return last_ = entry.get();
    return nullptr;
  }

  // Adds an entry, which is found before those that look alike.
  void add(uint64_t hash, std::unique_ptr<Entry> entry) {
    if (size_ >= CAPACITY) clear();
    last_ = nullptr;
    std::unique_ptr<Entry> dropped;  // freed at the end: that may run code which changes this table
    auto& row = entries_[hash];
    row.insert(row.begin(), std::move(entry));
    ++size_;
    if (row.size() <= ALIKE) return;
    dropped = std::move(row.back());
    row.pop_back();
    --size_;
  }

  // Nothing is found any more before a plan is freed.
  void clear() { size_ = 0, last_ = nullptr, static_cast<void>(std::exchange(entries_, {})); }
  size_t size() const { return size_; }

  int visit(visitproc visit, void* arg) const {
    for (const auto& row : entries_)
      for (const auto& entry : row.second)
        if (const int stopped = entry->visit(visit, arg)) return stopped;
    return 0;
  }

 private:
  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Entry>>> entries_;
  const Entry* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace nxcore
