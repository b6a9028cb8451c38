// A file as read-only memory.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memra/error.hpp>
#include <span>
#include <string>
#include <utility>

namespace tiny {

/// Memory-maps a regular file. Do not truncate it while it is mapped.
class MappedFile {
 public:
  static memra::Result<MappedFile> open(const std::string& path) {
    // Without O_NONBLOCK, opening a pipe waits for a writer that may never come.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return failure(path);
    struct stat info {};
    if (::fstat(fd, &info) != 0) {
      const memra::Status s = failure(path);
      ::close(fd);
      return s;
    }
    if (!S_ISREG(info.st_mode)) {
      ::close(fd);
      return memra::Status::failure(memra::ErrorKind::bad_argument, "open", 0, 0, "%s is not a regular file",
                                    path.c_str());
    }
    MappedFile file;
    file.size_ = static_cast<std::size_t>(info.st_size);
    if (file.size_ != 0) {
      void* p = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (p == MAP_FAILED) {
        file.size_ = 0;
        const memra::Status s = failure(path);
        ::close(fd);
        return s;
      }
      file.data_ = static_cast<const std::byte*>(p);
    }
    ::close(fd);
    return file;
  }

  MappedFile(MappedFile&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  MappedFile& operator=(MappedFile&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  MappedFile() = default;
  static memra::Status failure(const std::string& path) {
    return memra::Status::failure(memra::ErrorKind::bad_argument, "open", errno, 0, "cannot read %s: %s", path.c_str(),
                                  std::strerror(errno));
  }

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tiny
