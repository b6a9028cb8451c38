// EXPECT: memra: -funsafe-math-optimizations, or a part of it, is set
// FLAGS: -freciprocal-math -D__RECIPROCAL_MATH__=1
#include <memra/views.hpp>
