# Turns the JSON files of a folder into one C array of names and texts (run as a script:
# cmake -DOUT=... -DDIR=... -DNAME=... -P tasks.cmake).
file(GLOB files ${DIR}/*.json)
list(SORT files)
set(text "/* Generated from JSON files. */\n#include \"eval/task.h\"\n\nconst struct iwp_builtin_task ${NAME}[] = {\n")
foreach(f ${files})
  get_filename_component(name ${f} NAME_WLE)
  file(READ ${f} hex HEX)
  string(REGEX REPLACE "(..)" "\\\\x\\1" hex "${hex}")
  string(APPEND text "    {\"${name}\", \"${hex}\"},\n")
endforeach()
string(APPEND text "    {0, 0},\n};\n")
file(WRITE ${OUT} "${text}")
