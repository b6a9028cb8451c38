// Everything an engine needs without a backend. Instruments (fault_dev.hpp, poison_dev.hpp, canary_dev.hpp,
// counting_dev.hpp, ordered_dev.hpp, guard_planes.hpp) are for tests and are included one by one, as is handover.hpp by
// whoever hands states over.
#pragma once

#include <memra/any_dev.hpp>
#include <memra/attend_batch.hpp>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <memra/layout.hpp>
#include <memra/model_config.hpp>
#include <memra/ops.hpp>
#include <memra/placement.hpp>
#include <memra/plan.hpp>
#include <memra/plan_kinds.hpp>
#include <memra/round_batch.hpp>
#include <memra/round_cost.hpp>
#include <memra/speculation.hpp>
#include <memra/version.hpp>
#include <memra/views.hpp>
#include <memra/workspace.hpp>
