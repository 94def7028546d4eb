#define BOOST_TEST_MODULE sidestep
#include <boost/test/unit_test.hpp>
