# Makes PAGE out of SOURCE, with @VERSION@, @LIBDIR@ and @OPTIONS@ filled in, the last by TOOL.
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${TOOL} options --man OUTPUT_VARIABLE options RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${TOOL} options --man: ${result}")
endif()
file(READ ${SOURCE} text)
string(STRIP "${options}" options)
string(REPLACE "@OPTIONS@" "${options}" text "${text}")
string(REPLACE "@VERSION@" "${VERSION}" text "${text}")
string(REPLACE "@LIBDIR@" "${LIBDIR}" text "${text}")
file(WRITE ${PAGE} "${text}")
