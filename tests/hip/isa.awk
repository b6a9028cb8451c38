# Reads the assembly of HIP kernels (one target, as the compiler prints it) and reports what a hot kernel must not do.
# Tuned kernels are those whose body's name begins with Hip; of the portable ones those that run in every step and keep
# nothing in arrays are held to the facts of the loader, too. Prints one line per fault, then a summary; exit status 1 if
# there was a fault or nothing to look at.

function fault(what, detail) {
  if (!said[kernel, what]++) printf "%s: %s%s\n", kernel, what, detail == "" ? "" : ": " detail
  faults++
}

# Formats in names are their numbers: 1 is f16, 3 is q8_0.
function check_body() {
  if (kernel ~ /HipAppend/) {
    if (!wide_loads) fault("no 16-byte load", "four floats per lane are one")
    if (!wide_stores) fault("no 16-byte store", "rows of f32 are stored by them")
  }
  if (kernel ~ /HipAttendI/) {
    # f16: 8 elements per lane at head dimension 128; q8_0: 16 at 256. Four or two keys at a time, K and V.
    if (kernel ~ /FormatE1E.*Lj128E/ && wide_loads < 8) fault("narrow loads", wide_loads " of 16 bytes")
    if (kernel ~ /FormatE3ELS[0-9A-Z_]*_3ELb1ELj256E/ && wide_loads < 4) fault("narrow loads", wide_loads " of 16 bytes")
    if (!moves) fault("no data-parallel primitive", "lanes exchange values in some slower way")
  }
  if (kernel ~ /HipScan|HipDraft/) {
    if (!moves) fault("no data-parallel primitive", "lanes exchange values in some slower way")
    if (kernel ~ /HipScan/) scans++
    else drafts++
  }
  if (kernel ~ /HipAppend|HipAttendI|HipScan|HipDraft|HipRedNarrow/ && !multiplies) {
    fault("no 64-bit multiply", "row numbers times strides are cut off at 2^32")
  }
  bodies++
}

/^_Z[A-Za-z0-9_]*:/ {
  kernel = substr($1, 1, index($1, ":") - 1)
  tuned = is_tuned()
  wide_loads = wide_stores = moves = multiplies = 0
}
/^\.Lfunc_end/ {
  if (tuned) check_body()
  tuned = 0
}
# On every target fp8 is OCP's, converted in software: the instructions mean FNUZ on some.
/^[ \t]+v_[a-z0-9_]*(fp8|bf8)/ { fault("a conversion instruction of fp8", $1) }
tuned && /^[ \t]+(scratch|buffer)_(load|store)/ { fault("memory of its own", $1) }
tuned && /^[ \t]+flat_(load|store)/ { fault("an address of unknown kind", $1) }
tuned && kernel !~ /HipArgmax/ && /^[ \t]+ds_(bpermute|permute|swizzle)/ { fault("an exchange through shared memory", $1) }
# Base in scalar registers plus 32 bits: fine for a lane's number, never for a place in a plane.
# (A byte is a flag among the kernel's arguments: planes are read two bytes at a time or more.)
tuned && kernel ~ /HipAttendI/ && /^[ \t]+global_load/ && !/global_load_(u8|ubyte)/ && /, s\[[0-9]+:[0-9]+\]/ { fault("a plane by 32 bits", $0) }
tuned && kernel ~ /HipAppend/ && /^[ \t]+global_store/ && /, s\[[0-9]+:[0-9]+\]/ { fault("a plane by 32 bits", $0) }
tuned && /^[ \t]+global_load_(dwordx4|b128)/ { wide_loads++ }
tuned && /^[ \t]+global_store_(dwordx4|b128)/ { wide_stores++ }
tuned && /_dpp/ { moves++ }
tuned && /^[ \t]+(v_mad_u64_u32|v_mad_co_u64_u32|v_mul_hi_u32|s_mul_hi_u32|s_mul_u64)/ { multiplies++ }

# What the assembler tells the loader.
/^amdhsa\.kernels:/ { in_list = 1 }
in_list && /^  - / { check_facts() }
in_list && /^    \.name:/ { kernel = $2 }
in_list && /^(    |  - )\.[a-z_]+:/ {
  key = $0
  sub(/^[ -]*\./, "", key)
  sub(/:.*/, "", key)
  fact[key] = $NF
}
in_list && /^amdhsa\.[a-z]+:/ && !/kernels/ {
  check_facts()
  in_list = 0
}
function is_tuned() { return kernel ~ /gpu_blocksI.*[0-9]Hip[A-Z]/ || kernel ~ /[0-9]HipRed/ }
function is_hot() { return is_tuned() || kernel ~ /gpu_itemsI.*Portable(Append|Conv|DraftWrite|CopyRows)/ }
function check_facts() {
  if (kernel != "" && fact["name"] == kernel && is_hot()) {
    if (fact["private_segment_fixed_size"] != 0) fault("scratch", fact["private_segment_fixed_size"] " bytes per lane")
    if (fact["vgpr_spill_count"] != 0) fault("vector registers spilled", fact["vgpr_spill_count"])
    if (fact["sgpr_spill_count"] != 0) fault("scalar registers spilled", fact["sgpr_spill_count"])
    if (fact["group_segment_fixed_size"] > 65536) fault("shared memory", fact["group_segment_fixed_size"])
    if (fact["vgpr_count"] > most) most = fact["vgpr_count"]
    if (is_tuned()) facts++
    else portable++
  }
  kernel = ""
  split("", fact)
}
END {
  printf "%d tuned kernels (%d scans, %d of drafts), %d with facts, and %d portable ones; at most %d vector registers; %d faults\n", bodies, scans, drafts, facts, portable, most, faults
  exit faults || bodies == 0 || facts != bodies
}
