// EXPECT: memra: -ffast-math is set
// FLAGS: -ffast-math
#include <memra/views.hpp>
