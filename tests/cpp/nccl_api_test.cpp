// SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
// SPDX-License-Identifier: Apache-2.0

#include "kvxfer/cuda/nccl_api.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>

#include "support/fake_ranks.hpp"

namespace kvxfer::cuda {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(LoadNccl, TellsVersionAndPath) {
  const support::FakeNccl nccl({.version = 22809});
  const auto api = nccl.load();
  EXPECT_EQ(api->version_code, 22809);
  EXPECT_THAT(api->path, EndsWith("libfake_nccl.so"));
  EXPECT_TRUE(api->has_windows());
  EXPECT_NE(api->all_gather_config, nullptr);
}

TEST(LoadNccl, LeavesOutOptionalFunctions) {
  const support::FakeNccl nccl({}, KVXFER_FAKE_NCCL_WITHOUT_OPTIONAL);
  const auto api = nccl.load();
  EXPECT_FALSE(api->has_windows());
  EXPECT_EQ(api->get_peer_device_pointer, nullptr);
  EXPECT_EQ(api->all_gather_config, nullptr);
  EXPECT_NE(api->all_gather, nullptr);
}

TEST(LoadNccl, LooksNowhereElseThanAtAGivenPath) {
  const support::FakeNccl nccl;
  EXPECT_THAT([] { (void)load_nccl({.explicit_path = "/no/libnccl.so.2"}); },
              ThrowsMessage<UnsupportedError>(
                  AllOf(HasSubstr("/no/libnccl.so.2"), HasSubstr("nvidia-nccl-cu13>=2.31.2"))));
}

TEST(LoadNccl, PrefersTheCopyOfTheProcess) {
  const support::FakeNccl nccl({.version = 23007});
  const auto api = load_nccl({.wheel_path = "/no/wheel/libnccl.so.2"});
  EXPECT_EQ(api->version_code, 23007);
}

TEST(LoadNccl, TakesTheWheelBeforeAnyOther) {
  const auto api = load_nccl({.soname = "libnccl-absent.so.9", .wheel_path = KVXFER_FAKE_NCCL});
  EXPECT_THAT(api->path, EndsWith("libfake_nccl.so"));
}

TEST(LoadNccl, ListsWhatItTried) {
  EXPECT_THAT([] { (void)load_nccl({.soname = "libnccl-absent.so.9", .wheel_path = "/no/w"}); },
              ThrowsMessage<UnsupportedError>(
                  AllOf(HasSubstr("libnccl-absent.so.9: not in the process"), HasSubstr("/no/w"))));
}

TEST(LoadNccl, RefusesALibraryThatIsNotNccl) {
  EXPECT_THAT([] { (void)load_nccl({.explicit_path = "libm.so.6"}); },
              ThrowsMessage<UnsupportedError>(HasSubstr("ncclGetVersion")));
}

TEST(NcclCheck, CarriesCodeAndCall) {
  const support::FakeNccl nccl;
  const auto api = nccl.load();
  EXPECT_NO_THROW(nccl_check(*api, kNcclSuccess, "ncclAllGather"));
  try {
    nccl_check(*api, 5, "ncclAllGather");
    FAIL() << "status 5 passed";
  } catch (const NcclError& error) {
    EXPECT_EQ(error.code(), 5);
    EXPECT_STREQ(error.what(), "ncclAllGather failed with 5 (fake error) in the fake");
  }
}

NcclApi api_of(std::int64_t version_code) {
  NcclApi api;
  api.version_code = version_code;
  return api;
}

TEST(MakeNcclConfig, HasTheFieldsThatAllVersionsShare) {
  for (const std::int64_t code : {22809, 23007, 23102, 23203}) {
    const NcclConfig config = make_nccl_config(api_of(code), 2);
    EXPECT_EQ(config.size, 72U);
    EXPECT_EQ(config.magic, 0xcafebeefU);
    EXPECT_EQ(config.version, static_cast<unsigned int>(code));
    EXPECT_EQ(config.blocking, 0);
    EXPECT_EQ(config.cta_policy, 2);
    EXPECT_EQ(config.nvls_ctas, INT_MIN);
  }
  EXPECT_EQ(make_nccl_config(api_of(23102), 0).cta_policy, INT_MIN);
}

TEST(MakeNcclConfig, RefusesStructuresItDoesNotKnow) {
  EXPECT_EQ(make_nccl_config(api_of(22707), 0).size, 20U);
  EXPECT_THROW((void)make_nccl_config(api_of(22707), 2), UnsupportedError);
  EXPECT_THROW((void)make_nccl_config(api_of(30000), 0), UnsupportedError);
}

// The real library loads without a driver; KVXFER_NCCL_LIBRARY names it where it is installed.
TEST(LoadNccl, BindsTheRealLibrary) {
  const char* path = std::getenv("KVXFER_NCCL_LIBRARY");
  if (path == nullptr) GTEST_SKIP() << "KVXFER_NCCL_LIBRARY is not set";
  const auto api = load_nccl({.explicit_path = path});
  EXPECT_GE(api->version_code, 22809);
  EXPECT_LT(api->version_code, 30000);
  EXPECT_STREQ(api->get_error_string(kNcclSuccess), "no error");
  EXPECT_TRUE(api->has_windows());
  EXPECT_NE(api->comm_finalize, nullptr);
  if (api->version_code >= 23102) {
    EXPECT_NE(api->all_gather_config, nullptr);
    EXPECT_NE(api->get_peer_device_pointer, nullptr);
  }
  EXPECT_NO_THROW((void)make_nccl_config(*api, 2));
}

}  // namespace
}  // namespace kvxfer::cuda
