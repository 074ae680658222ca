package awslambda

import (
	"debug/elf"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxUnzippedBytes is the limit on what a zip holds:
// https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html.
const maxUnzippedBytes = 250 << 20

// runtimeGlibc is the C library of provided.al2023, 2.34: https://docs.aws.amazon.com/linux/al2023/ug/core-glibc.html.
const runtimeGlibc = 34

// CheckProgram refuses, with a [Problem], the file of a program that cannot run as a function with an architecture of Go
// ("amd64", "arm64"): one that is too large, that is no program for Linux, that is for another processor, or that
// needs a C library newer than that of provided.al2023. An architecture that is empty takes each; it returns that of the
// program. A file that is no ELF program is taken as it is where it begins with #!, as a script does.
func CheckProgram(path, arch string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("look at the program: %w", err)
	}
	if info.Size() > maxUnzippedBytes {
		return "", &Problem{
			What: fmt.Sprintf("the program %s has %d MB, and a function holds %d", path, info.Size()>>20, maxUnzippedBytes>>20),
			Hint: "build with -ldflags='-s -w', or link less",
		}
	}
	if isScript(path) {
		return arch, nil
	}
	program, err := elf.Open(path)
	if err != nil {
		return "", &Problem{
			What: fmt.Sprintf("%s is no program for Linux", path),
			Hint: "build it with GOOS=linux, or give the directory of its main package", Err: err,
		}
	}
	defer func() { _ = program.Close() }() // it was only read
	found := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[program.Machine]
	switch {
	case found == "":
		return "", &Problem{
			What: fmt.Sprintf("%s is for the processor %s, and functions have amd64 or arm64", path, program.Machine),
			Hint: "build it with GOARCH=arm64 or GOARCH=amd64, or give the directory of its main package",
		}
	case arch != "" && arch != found:
		return "", &Problem{
			What: fmt.Sprintf("%s is for %s, and the function for %s", path, found, arch),
			Hint: fmt.Sprintf("give --arch %s, or build it with GOARCH=%s", found, arch),
		}
	}
	return found, checkGlibc(path, program)
}

// isScript reports whether a file begins with #!.
func isScript(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	var head [2]byte
	n, _ := file.Read(head[:])
	return string(head[:n]) == "#!"
}

// checkGlibc refuses a program that is linked against a C library that functions do not have.
func checkGlibc(path string, program *elf.File) error {
	symbols, err := program.ImportedSymbols()
	if err != nil {
		return nil //nolint:nilerr // a program that links nothing has no table of it
	}
	for _, symbol := range symbols {
		version, versioned := strings.CutPrefix(symbol.Version, "GLIBC_2.")
		minor, err := strconv.Atoi(version)
		if versioned && err == nil && minor > runtimeGlibc {
			return &Problem{
				What: fmt.Sprintf("%s needs %s of the C library (%s), and provided.al2023 has 2.%d", path, symbol.Version,
					symbol.Name, runtimeGlibc),
				Hint: "build it with CGO_ENABLED=0",
			}
		}
	}
	return nil
}
