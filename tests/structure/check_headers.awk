# The rules of include/memra that a compiler does not check. Prints "file:line: rule: sentence" per violation.
# Input: the headers, as paths below include/. A light parser: it knows comments, literals and which brace is a class.

function report(rule, sentence) {
  print FILENAME ":" FNR ": " rule ": " sentence
  failures++
}

# Is `word` a whole word of `text`?
function has_word(text, word) {
  return (" " text " ") ~ ("[^A-Za-z0-9_]" word "[^A-Za-z0-9_]")
}

# `line` without comments, with literals emptied. Keeps `in_comment` from line to line.
function strip(line,    out, i, c, two, quote) {
  out = ""
  quote = ""
  for (i = 1; i <= length(line); i++) {
    c = substr(line, i, 1)
    two = substr(line, i, 2)
    if (in_comment) {
      if (two == "*/") { in_comment = 0; i++; out = out " " }
    } else if (quote != "") {
      if (c == "\\") i++
      else if (c == quote) { quote = ""; out = out c }
    } else if (two == "//") break
    else if (two == "/*") { in_comment = 1; i++ }
    else if (c == "\"") { quote = c; out = out c }
    else if (c == "'" && out !~ /[0-9A-Fa-f]$/) { quote = c; out = out c }  # else a digit separator
    else out = out c
  }
  return out
}

# A declaration without what comes before its own words: template heads, attributes, access labels.
function head(text,    depth, i, c) {
  gsub(/\[\[[^]]*\]\]/, "", text)
  gsub(/alignas *\([^)]*\)/, "", text)
  for (;;) {
    sub(/^[ \t]+/, "", text)
    if (text ~ /^(public|private|protected) *:/) { sub(/^[a-z]+ *:/, "", text); continue }
    if (text ~ /^template *</) {
      depth = 0
      for (i = index(text, "<"); i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "<") depth++
        if (c == ">" && --depth == 0) break
      }
      text = substr(text, i + 1)
      continue
    }
    return text
  }
}

function declares_no_object(text) {
  sub(/^inline +/, "", text)
  return text == "" || text !~ /^[A-Za-z_:}]/ || \
         text ~ /^(using|typedef|namespace|class|struct|union|enum|friend|concept|static_assert|requires)([^A-Za-z0-9_]|$)/
}

# Where the `<` at `from` closes, or 0: then it is no bracket of template arguments.
function closes(text, from,    i, c, angle, round) {
  for (i = from; i <= length(text); i++) {
    c = substr(text, i, 1)
    if (c == "(") round++
    if (c == ")" && --round < 0) return 0
    if (c == "<" && round == 0) angle++
    if (c == ">" && round == 0 && substr(text, i - 1, 1) != "-" && --angle == 0) return i
  }
  return 0
}

# `text` without template arguments and decltype(...): what is left of brackets belongs to the declarator.
function plain(text,    out, i, c, round) {
  out = ""
  for (i = 1; i <= length(text); i++) {
    c = substr(text, i, 1)
    if (c == "<" && out ~ /[A-Za-z0-9_]$/ && closes(text, i)) i = closes(text, i)
    else if (c == "(" && out ~ /(^|[^A-Za-z0-9_])decltype *$/) {
      for (round = 1; round > 0 && ++i <= length(text);) {
        c = substr(text, i, 1)
        if (c == "(") round++
        if (c == ")") round--
      }
    } else out = out c
  }
  return out
}

# Is the first bracket of `decl` that of an object and not of a function's parameters? `after` is what ended `decl`.
# `T (*name)(...)` and `T name(*p)` are objects, and so is what is initialised with a literal. `T name(word)` may be
# either: with `inline` or `static` and no body it is taken for an object, unless a parameter has a name.
function brackets_of_object(decl, after,    rest, i, c, depth, start) {
  rest = substr(decl, index(decl, "(") + 1)
  if (substr(decl, 1, index(decl, "(") - 1) !~ /[A-Za-z0-9_>*&][ *&]+([A-Za-z_:]|$)/) return 0
  start = 1
  for (i = 1; i <= length(rest) && depth >= 0; i++) {
    c = substr(rest, i, 1)
    if (start && c != " ") {
      if (c ~ /["'0-9{*&+-]/ || substr(rest, i) ~ /^(true|false|nullptr)[^A-Za-z0-9_]/) return 1
      start = 0
    }
    if (c == "(") depth++
    if (c == ")") depth--
    if (c == "," && depth == 0) start = 1
  }
  rest = substr(rest, 1, i - 2)
  return after == ";" && (has_word(decl, "inline") || has_word(decl, "static")) && decl !~ /= *(default|delete) *$/ &&
         rest !~ /^ *$/ && rest !~ /[A-Za-z0-9_:][*& ]+[A-Za-z_]/
}

# Judges one declaration: `text` up to its `;` or `{`, which is `after`, in a scope of `kind`.
function judge(text, kind, after,    decl, before_value) {
  decl = head(text)
  if (has_word(decl, "constexpr") || has_word(decl, "consteval")) return
  if (kind == "F") {
    if (has_word(decl, "static")) report("mutable-state", "a static local; a header-only library keeps no state")
    return
  }
  if (has_word(decl, "operator")) return
  decl = plain(decl)
  before_value = decl
  sub(/=.*/, "", before_value)
  if (kind == "C") {
    if (has_word(before_value, "static") && (before_value !~ /\(/ || before_value ~ /^[^(]*\( *[*&]/))
      report("mutable-state", "a static data member that is not constexpr")
  } else {
    if (decl ~ /^}[ ]*[A-Za-z_]/) report("mutable-state", "a global variable that is not constexpr")
    if (decl ~ /^}/ || decl ~ /^extern +template[^A-Za-z0-9_]/) return
    sub(/^extern +("" *)?/, "", decl)
    sub(/^extern +("" *)?/, "", before_value)
    if (declares_no_object(decl)) {
      sub(/^(inline|static) +/, "", before_value)
      # `struct S name;`; as memra writes names, a type begins with a capital and an object does not.
      if (before_value ~ /^(class|struct|union|enum) +[A-Za-z_][A-Za-z0-9_:]*[*& ]+[a-z_][A-Za-z0-9_]* *$/ &&
          before_value !~ /^enum +(class|struct) | final *$/)
        report("mutable-state", "a global variable that is not constexpr")
    } else if (before_value !~ /\(/ ? before_value ~ /[A-Za-z0-9_>*&] +[*&]*[A-Za-z_]/ : brackets_of_object(decl, after))
      report("mutable-state", "a global variable that is not constexpr")
  }
}

# What the brace after `text` opens: N(amespace), C(lass), E(num) or F (function, initialiser, requires).
function opens(text, kind,    decl) {
  decl = head(text)
  if (decl ~ /^(inline +)?namespace/ || decl ~ /^extern *""/) return "N"
  if (decl ~ /^enum/) return "E"
  if (decl !~ /\(/ && decl !~ /=/ && (" " decl) ~ /[^A-Za-z0-9_](class|struct|union)([^A-Za-z0-9_]|$)/) return "C"
  if (decl ~ /^requires.*[^A-Za-z0-9_](class|struct|union) +[A-Za-z0-9_]+ *$/) return "C"
  return "F"
}

function parse(code,    i, c) {
  for (i = 1; i <= length(code); i++) {
    c = substr(code, i, 1)
    if (c == "(") paren++
    if (c == ")") paren--
    if (c == "{") {
      if (paren == 0) judge(statement, scope[depth], c)
      next_scope = paren > 0 ? "F" : opens(statement, scope[depth])
      saved_statement[depth] = statement
      saved_paren[depth] = paren
      scope[++depth] = next_scope
      statement = ""
      paren = 0
    } else if (c == "}") {
      closed = scope[depth--]
      paren = saved_paren[depth]
      statement = paren > 0 ? saved_statement[depth] "{}" : (closed == "C" ? "}" : "")
      # After a function body the next declaration begins; after a class there may be a variable of it.
    } else if (c == ";" && paren == 0) {
      judge(statement, scope[depth], c)
      statement = ""
    } else statement = statement c
  }
  if (statement != "") statement = statement " "
  if (statement ~ /^} +[A-Za-z]/ && scope[depth] != "N") statement = substr(statement, 2)
}

function end_file(    name) {
  if (last == "") return
  # Macros that the file does not take back are seen by users.
  for (name in file_macros) {
    macros[name] = 1
    if (++macro_count > 4) {
      print last ":" file_macros[name] ": macro: `" name "` is macro number " macro_count "; four are enough"
      failures++
    }
    delete file_macros[name]
  }
  if (!once && !half) {
    print last ":1: pragma-once: no `#pragma once`"
    failures++
  }
  if (lines > 400) {
    print last ":1: giant: " lines " lines; a header is at most 400"
    failures++
  }
}

FNR == 1 {
  end_file()
  last = FILENAME
  once = in_comment = continued = depth = paren = 0
  statement = ""
  scope[0] = "N"
  gpu = FILENAME ~ /memra\/detail\/gpu_[^\/]*$/ || FILENAME ~ /memra\/detail\/platform\.hpp$/
  # Halves of a pair around code: no #pragma once, because they are included more than once on purpose.
  half = FILENAME ~ /memra\/detail\/strict_fp_(push|pop|begin|end)[^\/]*$/
}

{
  lines = FNR
  lower = " " tolower($0) " "
  if (!gpu && (lower ~ /[^a-z](cuda|nvcc|nvidia|rocm|nccl|rccl|cublas|hipblas|amd|gfx[0-9])/ || lower ~ /[^a-z]hip[^a-z]/ ||
               (" " $0) ~ /[^A-Za-z]hip[A-Z][A-Za-z]*/ || lower ~ /__(device|global|host|shared|hipcc|forceinline)__/ ||
               lower ~ /__hip_|__sync(threads|warp)|[^a-z](threadidx|blockidx|blockdim|griddim)[^a-z]/))
    report("vendor-token", "a vendor's name outside detail/gpu_* and detail/platform.hpp")

  code = strip($0)
  if (has_word(code, "thread_local")) report("mutable-state", "thread_local")
  if (code ~ /getenv/) report("environment", "policy is an argument, never an environment variable")
  if (FILENAME !~ /memra\/error\.hpp$/) {
    if (has_word(code, "throw")) report("throw", "only check() in error.hpp throws")
    if (has_word(code, "try") || has_word(code, "catch")) report("catch", "cleanup is RAII, errors are Status")
  }
  if (code ~ /^[ \t]*#[ \t]*pragma[ \t]+once/) once = 1
  if (code ~ /^[ \t]*#[ \t]*define[ \t]/) {
    name = code
    sub(/^[ \t]*#[ \t]*define[ \t]+/, "", name)
    sub(/[^A-Za-z0-9_].*/, "", name)
    if (name !~ /^MEMRA_/) report("macro", "`" name "` does not begin with MEMRA_")
    else if (!(name in macros) && !(name in file_macros)) file_macros[name] = FNR
  }
  if (code ~ /^[ \t]*#[ \t]*undef[ \t]/) {
    name = code
    gsub(/^[ \t]*#[ \t]*undef[ \t]+|[ \t]+$/, "", name)
    delete file_macros[name]
  }
  if (code ~ /^[ \t]*#[ \t]*include/) {
    if ($0 !~ /#[ \t]*include[ \t]+<(memra\/[a-z0-9_\/]+\.(hpp|inc)|[a-z0-9_]+)>/ &&
        !(FILENAME ~ /memra\/detail\// && $0 ~ /#[ \t]*include[ \t]+<[a-z0-9]+intrin\.h>/) &&
        !(FILENAME ~ /memra\/config\// && $0 ~ /<nlohmann\/json\.hpp>/) && !gpu)
      report("include", "expected <memra/...> or a header of the standard library")
  }

  if (continued || code ~ /^[ \t]*#/) continued = code ~ /\\$/
  else parse(code)
}

END {
  end_file()
  if (failures > 0) exit 1
}
