package quantity_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAmountsReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{quantity.Size{CPU: 1000, Memory: 96 * quantity.MiB}.String(), "1 core, 96 MiB"},
		{quantity.Size{CPU: 250, Memory: 3 * quantity.GiB / 2}.String(), "0.25 cores, 1.5 GiB"},
		{
			quantity.Size{CPU: 2000, GPU: 500, GPUMemory: quantity.GiB, DeviceClass: "h200"}.String(),
			"2 cores, 0 B, 0.5 GPU with 1 GiB on h200",
		},
		{quantity.Bytes(-2048).String(), "-2 KiB"},
		{quantity.Money(0).String(), "$0"},
		{(12*quantity.USD + quantity.USD/2).String(), "$12.50"},
		{quantity.Money(210_000_000).String(), "$0.0002100"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestMoneyDoesNotOverflowOrVanish(t *testing.T) {
	t.Parallel()
	if got := quantity.USD.Times(math.NaN()); got <= quantity.USD {
		t.Errorf("a dollar times NaN is %v, want more than any price", got)
	}
	if got := quantity.USD.Times(1e30); got <= 0 {
		t.Errorf("a dollar times 1e30 is %v, want the largest amount", got)
	}
	if _, err := quantity.Dollars(math.Inf(1)); !errors.Is(err, quantity.ErrQuantity) {
		t.Errorf("infinitely many dollars: %v, want an error of ErrQuantity", err)
	}
	if got, err := quantity.Dollars(0.25); err != nil || got != quantity.USD/4 {
		t.Errorf("a quarter: %v, %v", got, err)
	}
}

func TestTheCPURateIsCPUTimeOverWallTime(t *testing.T) {
	t.Parallel()
	if got := (quantity.Usage{CPU: time.Second, Wall: 4 * time.Second}).CPURate(); got != 250 {
		t.Errorf("one second in four is %d, want 250", got)
	}
	if got := (quantity.Usage{CPU: time.Second}).CPURate(); got != 0 {
		t.Errorf("without wall time the rate is %d, want 0", got)
	}
}

func TestAmountsAreReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quantity.Bytes{
		"1B": 1, "100000 B": 100_000, "512MiB": 512 * quantity.MiB, "1.5GiB": 3 * quantity.GiB / 2,
		"1.5 GiB": 3 * quantity.GiB / 2,
		"2GB":     2_000_000_000, "2G": 2_000_000_000, "4Ki": 4096, "64 KiB": 64 * quantity.KiB, "1PiB": 1 << 50,
	} {
		if got, err := quantity.ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "0", "0B", "4096", "-1", "x", "1.5.2G", "1 GiB extra", "2PiB", "0.1", "NaN", "1e9",
		"GiB",
	} {
		if got, err := quantity.ParseBytes(text); !errors.Is(err, quantity.ErrQuantity) {
			t.Errorf("%q: got %v, %v, want an error of ErrQuantity", text, got, err)
		}
	}
	for text, want := range map[string]quantity.Milli{"2": 2000, "0.5": 500, "500m": 500, "1m": 1, "10000": 10_000_000} {
		if got, err := quantity.ParseCores(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "0m", "-1", "10001", "0.0001", "two", "1,5", "Inf"} {
		if got, err := quantity.ParseCores(text); !errors.Is(err, quantity.ErrQuantity) {
			t.Errorf("%q: got %v, %v, want an error of ErrQuantity", text, got, err)
		}
	}
}
