// The extension's module. Its name ends with the minor version of torch that it was built against.
#include "guard.h"
#include "types.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace nxcore;
  const auto setup = [](Ref preference, Ref nothing, Ref raw_stream) {
    *environment = {preference, nothing, raw_stream, &at::globalContext()};
  };
  module.attr("INTERFACE") = 2;  // as nxcore/interop/native.py has it
  module.def("setup", setup, "setup(preference, nothing, raw_stream): comes first.");
  module.def("adopt", adopt, "adopt(operator, params, lowers, call, reference, check, holds): its calls come here.");
  module.def("own", own, "own(operator, function, most, names, form, single): torch's, in place of the reference.");
  for (PyTypeObject* type : {&LookupType, &DirectType, &JoinType})
    if (PyModule_AddType(module.ptr(), type) < 0) throw pybind11::error_already_set();
}
