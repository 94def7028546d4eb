# Makes PAGE out of SOURCE, with @VERSION@, @LIBDIR@, @OPTIONS@ and @REASONS@ filled in, the last two by
# TOOL.
cmake_minimum_required(VERSION 3.25)

foreach(table options reasons)
  execute_process(COMMAND ${TOOL} ${table} --man OUTPUT_VARIABLE ${table} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${TOOL} ${table} --man: ${result}")
  endif()
  string(STRIP "${${table}}" ${table})
endforeach()
file(READ ${SOURCE} text)
string(REPLACE "@OPTIONS@" "${options}" text "${text}")
string(REPLACE "@REASONS@" "${reasons}" text "${text}")
string(REPLACE "@VERSION@" "${VERSION}" text "${text}")
string(REPLACE "@LIBDIR@" "${LIBDIR}" text "${text}")
file(WRITE ${PAGE} "${text}")
