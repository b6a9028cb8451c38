// JSON from outside, as the library's loaders read it.
#pragma once

#include <memra/config/fields.hpp>
#include <memra/config/json.hpp>

namespace tiny {

using memra::config::Fields;
using memra::config::in_quotes;
using memra::config::Json;
using memra::config::parse_json;
using memra::config::refuse;

}  // namespace tiny
