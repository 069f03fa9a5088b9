// The extension's types, one file each.
#pragma once
#include <tuple>
#include <vector>

#include "python.h"

namespace nxcore {

extern PyTypeObject LookupType;  // the base of an operator's class, which finds plans without running Python
extern PyTypeObject DirectType;  // a plan that is a function of machine code, run without the interpreter's lock
extern PyTypeObject JoinType;    // a forward plan and a backward operator as one node of autograd

// A parameter's name, kind and default; whether it is required or passed by name alone; what reads it.
using GivenParam = std::tuple<Ref, char, Ref, bool, bool, Ref>;

// What becomes of the result of torch's own function: nothing, a tuple, or a tensor that is dense in the memory format
// of the first argument; the letters are those of nxcore.interop.own.
enum class Form : char { same = 's', tuple = 't', dense = 'd' };

// Lets calls of `operator_` come to its Lookup from now on; `python` is its __call__, `reference` torch's function, and
// `check` raises unless a call is valid, and `holds` for other sizes as the letter of Holds says.
void adopt(Ref operator_, const std::vector<GivenParam>& params, bool lowers, Ref python, Ref reference, Ref check,
           char holds);

// Lets calls that torch serves be calls of its own `function`: see nxcore.interop.own.
void own(Ref operator_, Ref function, Py_ssize_t most, const std::vector<Ref>& names, char form, bool single);

}  // namespace nxcore
