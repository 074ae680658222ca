package quantity

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
)

// Most of what can be written: more than any host has.
const (
	mostCores  = 10_000
	mostMemory = 1 << 50
)

var (
	bytesPattern = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?(?:([kKMGTP]i?)[Bb]?|[Bb])$`)
	coresPattern = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(m?)$`)
)

// units are the multiples by their letters; with an i they count in 1,024s, as memory does, without in 1,000s, as disks
// do.
var units = map[string]float64{
	"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	"ki": 1 << 10, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}

// ParseBytes reads an amount of memory as people write it: "512MiB", "1.5 GiB", "2G" (2,000,000,000), "4096 B"; a
// number without a unit is refused. It is more than 0 and at most a pebibyte; any other text is an error that wraps
// ErrQuantity.
func ParseBytes(text string) (Bytes, error) {
	const hint = "write memory with its unit, such as 512MiB, 1.5GiB or 2GB"
	match := bytesPattern.FindStringSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("%q is no memory: %w; %s", text, ErrQuantity, hint)
	}
	amount, err := strconv.ParseFloat(match[1], 64)
	amount *= units[match[2]]
	if err != nil || amount < 1 || amount > mostMemory {
		return 0, fmt.Errorf("%q is not between 1 byte and %s: %w; %s", text, Bytes(mostMemory), ErrQuantity, hint)
	}
	return Bytes(math.Round(amount)), nil
}

// ParseCores reads a share of cores as people write it: "2", "0.5", "500m" (thousandths). It is more than 0 and at most
// 10,000 cores; any other text is an error that wraps ErrQuantity.
func ParseCores(text string) (Milli, error) {
	const hint = "write cores, such as 2, 0.5 or 500m"
	match := coresPattern.FindStringSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("%q is no number of cores: %w; %s", text, ErrQuantity, hint)
	}
	amount, err := strconv.ParseFloat(match[1], 64)
	if match[2] == "" {
		amount *= float64(Core)
	}
	if err != nil || amount < 1 || amount > float64(mostCores*Core) {
		return 0, fmt.Errorf("%q is not between 0.001 and %d cores: %w; %s", text, mostCores, ErrQuantity, hint)
	}
	return Milli(math.Round(amount)), nil
}
