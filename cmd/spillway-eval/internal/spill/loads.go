package spill

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrFormat is wrapped by every error about what a file says, as opposed to a file that cannot be read.
var ErrFormat = errors.New("not in the expected format")

// Seconds reads a gzipped file with the tasks of one second a line, and returns those of each full minute, times
// factor.
func Seconds(path string, factor float64) ([]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrFormat, err)
	}
	var loads []float64
	lines, sum, line := bufio.NewScanner(plain), 0.0, 0
	for lines.Scan() {
		line++
		n, err := strconv.ParseUint(strings.TrimSpace(lines.Text()), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read %s, line %d: %w: %q is no count", path, line, ErrFormat, lines.Text())
		}
		sum += float64(n) * factor
		if line%60 == 0 {
			loads, sum = append(loads, sum), 0
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrFormat, err)
	}
	return loads, nil
}

// stamp is how the Azure traces write a time.
const stamp = "2006-01-02 15:04:05.9999999"

// Stamps reads a CSV file whose first column, below a header, is the time of a task, rising, and returns how many there
// are in each full minute from the first on, times factor.
func Stamps(path string, factor float64) ([]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	rows := csv.NewReader(file)
	var loads []float64
	var first, last time.Time
	for line := 1; ; line++ {
		fields, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w: %w", path, ErrFormat, err)
		}
		if line == 1 {
			continue
		}
		at, err := time.Parse(stamp, fields[0])
		if err != nil || at.Before(last) {
			return nil, fmt.Errorf("read %s, line %d: %w: %q is no time, or before the one above it", path, line, ErrFormat,
				fields[0])
		}
		if line == 2 {
			first = at
		}
		last = at
		for minute := int(at.Sub(first) / time.Minute); len(loads) <= minute; {
			loads = append(loads, 0)
		}
		loads[len(loads)-1] += factor
	}
	if len(loads) == 0 {
		return nil, fmt.Errorf("read %s: %w: it has no rows", path, ErrFormat)
	}
	return loads[:len(loads)-1], nil // the last minute is cut off
}
