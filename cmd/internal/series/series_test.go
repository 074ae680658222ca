package series_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/series"
)

func TestContainersAreGroupedAndPutInOrder(t *testing.T) {
	t.Parallel()
	got, err := series.Containers(strings.NewReader("container_ip,value,timestamp_anon\n" +
		"b,0.5,120.5\na,0.25,60\nb,0.75,60\nNULL,0.9,60\n,0.9,60\nb,0.125,60\na,-0.0001,120\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []series.Series{
		{Name: "a", Points: []series.Point{{At: time.Unix(60, 0).UTC(), Value: 0.25}, {At: time.Unix(120, 0).UTC()}}},
		{Name: "b", Points: []series.Point{
			{At: time.Unix(60, 0).UTC(), Value: 0.75},
			{At: time.Unix(120, 5e8).UTC(), Value: 0.5},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMachinesAreOneARow(t *testing.T) {
	t.Parallel()
	got, err := series.Machines(5 * time.Minute)(strings.NewReader("a,1,2\nb,3,0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[1].Name != "b" || got[1].Points[0].Value != 3 ||
		got[1].Points[1].At.Sub(got[1].Points[0].At) != 5*time.Minute {
		t.Errorf("got %+v", got)
	}
}

func TestAPoolIsTwoSeries(t *testing.T) {
	t.Parallel()
	got, err := series.Pools(strings.NewReader("timestamp,mem,cpu\n2024-07-31 23:10,5,1\n2024-07-31 23:09,4,2\n"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2024, time.July, 31, 23, 9, 0, 0, time.UTC)
	want := []series.Series{
		{Name: "cpu", Points: []series.Point{{At: at, Value: 2}, {At: at.Add(time.Minute), Value: 1}}},
		{Name: "mem", Points: []series.Point{{At: at, Value: 4}, {At: at.Add(time.Minute), Value: 5}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestABrokenLineIsRefusedWithItsNumber(t *testing.T) {
	t.Parallel()
	machines := series.Machines(time.Minute)
	const containers, pools = "value,timestamp_anon,container_ip\n", "timestamp,cpu,mem\n"
	for _, c := range []struct {
		format     series.Format
		text, want string
	}{
		{series.Containers, "", "line 1"},
		{series.Containers, "value,timestamp_anon\n", "line 1"},
		{series.Containers, "value,timestamp_anon,container_ip,more\n", `unknown column "more"`},
		{series.Containers, "value,timestamp_anon,container_ip,value\n", "named twice"},
		{series.Containers, containers + "1,60,a\nNaN,120,a\n", "line 3"},
		{series.Containers, containers + "1,60,a\n+Inf,120,a\n", "line 3"},
		{series.Containers, containers + "-0.01,60,a\n", "line 2"},
		{series.Containers, containers + "1,1e300,a\n", "line 2"},
		{series.Containers, containers + "1,60\n", "line 2"},
		{series.Containers, containers + "1,60,\"a\n", "line 2"},
		{machines, "a,1,2\nb,1\n", "line 2"},
		{machines, "a\n", "line 1"},
		{machines, "a,1,x\n", "line 1"},
		{machines, "a,1,-1\n", "line 1"},
		{series.Pools, pools + "2024-07-31,1,1\n", "line 2"},
		{series.Pools, pools + "2024-07-31 23:09,1,inf\n", "line 2"},
	} {
		_, err := c.format(strings.NewReader(c.text))
		if !errors.Is(err, series.ErrFormat) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want an error of ErrFormat that says %q", c.text, err, c.want)
		}
	}
}

func TestAFileIsReadPackedOrNotAndNamedInErrors(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, _ = writer.Write([]byte("a,1,2\n"))
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"plain.csv": "a,1,2\n", "packed.csv.gz": packed.String(), "broken.csv": "a,1,2\nb,1,y\n",
		"cut.csv.gz": packed.String()[:20], "README.md": "no data",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths, err := series.Files(folder, "p")
	want := []string{filepath.Join(folder, "packed.csv.gz"), filepath.Join(folder, "plain.csv")}
	if diff := cmp.Diff(want, paths); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	for _, path := range paths {
		if got, err := series.Open(path, series.Machines(time.Minute)); err != nil || len(got) != 1 {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	for _, name := range []string{"broken.csv", "cut.csv.gz", "absent.csv"} {
		if _, err := series.Open(filepath.Join(folder, name), series.Machines(time.Minute)); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names it", name, err)
		}
	}
	if _, err := series.Files(folder, "other"); !errors.Is(err, series.ErrNoFiles) {
		t.Errorf("no such files: %v", err)
	}
	if _, err := series.Files(filepath.Join(folder, "absent"), ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such folder: %v", err)
	}
}

// check holds what every reader promises of what it accepts.
func check(t *testing.T, format series.Format, data []byte) {
	t.Helper()
	all, err := format(bytes.NewReader(data))
	if err != nil {
		if !strings.Contains(err.Error(), "line ") {
			t.Fatalf("%q: %v names no line", data, err)
		}
		return
	}
	for _, one := range all {
		for i, point := range one.Points {
			if !(point.Value >= 0) || math.IsInf(point.Value, 0) || math.Signbit(point.Value) {
				t.Fatalf("%q: %s has a use of %v", data, one.Name, point.Value)
			}
			if i > 0 && !point.At.After(one.Points[i-1].At) {
				t.Fatalf("%q: %s has %v after %v", data, one.Name, point.At, one.Points[i-1].At)
			}
		}
	}
}

func FuzzContainers(f *testing.F) {
	f.Add([]byte("value,timestamp_anon,container_ip\n0.5,60,a\n0.25,120,\"b\"\n"))
	f.Add([]byte("value,timestamp_anon,container_ip\n0.5,1e11,a\n"))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, series.Containers, data) })
}

func FuzzMachines(f *testing.F) {
	f.Add([]byte("a,1,2,3\nb,0,0,0\n"))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, series.Machines(time.Minute), data) })
}

func FuzzPools(f *testing.F) {
	f.Add([]byte("timestamp,cpu,mem\n2024-07-31 23:09,4.4,5.8572\n"))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, series.Pools, data) })
}
