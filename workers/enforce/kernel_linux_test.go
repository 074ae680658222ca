package enforce

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/procfs"
)

func TestASiteIsTheInnermostCgroupThatCanHoldGroups(t *testing.T) {
	t.Parallel()
	both := []string{"cpu", "memory"}
	limited := quantity.Size{Memory: quantity.GiB}
	for _, c := range []struct {
		name       string
		candidates []candidate
		want       site
		refusal    string
	}{
		{
			"at the root, groups and processes are side by side",
			[]candidate{{directory: "/", top: true, offered: both, others: 90, holdsSelf: true}},
			site{directory: "/", enable: both},
			"",
		},
		{
			"alone in a cgroup, this process moves aside",
			[]candidate{
				{directory: "/service", offered: both, holdsSelf: true, limit: limited},
				{directory: "/", top: true, offered: both},
			},
			site{directory: "/service", enable: both, move: true},
			"",
		},
		{
			"beside others, the groups are made around",
			[]candidate{
				{directory: "/slice/scope", offered: both, others: 2, holdsSelf: true},
				{directory: "/slice", offered: append(both, "pids"), enabled: both},
			},
			site{directory: "/slice", enable: []string{"pids"}},
			"",
		},
		{
			"a limit is not evaded",
			[]candidate{
				{directory: "/scope", offered: both, others: 2, holdsSelf: true, limit: limited},
				{directory: "/", top: true, offered: both},
			},
			site{},
			"not evaded",
		},
		{
			"without controllers there is none",
			[]candidate{{directory: "/", top: true, offered: []string{"hugetlb"}}},
			site{},
			"lacks the controllers cpu, memory",
		},
		{
			"what cannot be written is none",
			[]candidate{{directory: "/", refusal: "read-only", top: true, offered: both}},
			site{},
			"read-only",
		},
	} {
		got, refusal := chooseSite(c.candidates)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(site{})); diff != "" || !strings.Contains(refusal, c.refusal) ||
			(refusal == "") != (c.refusal == "") {
			t.Errorf("%s: refusal %q (-want +got):\n%s", c.name, refusal, diff)
		}
	}
}

func TestTheKernelsTextsAreRead(t *testing.T) {
	t.Parallel()
	pressure := parsePressure([]byte("some avg10=0.12 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 " +
		"avg300=0.00 total=7\n"))
	if want := (Pressure{Some: 1500 * time.Microsecond, Full: 7 * time.Microsecond}); pressure != want {
		t.Errorf("pressure: got %v, want %v", pressure, want)
	}
	if read, written := parseIO([]byte("8:0 rbytes=1 wbytes=20 rios=3 wios=4\n8:16 rbytes=5 wbytes=60\n")); read != 6 ||
		written != 80 {
		t.Errorf("io.stat: got %d and %d, want 6 and 80", read, written)
	}
	if read, written := parseLegacyIO([]byte("8:0 Read 1\n8:0 Write 20\n8:16 Read 5\nTotal 26\n")); read != 6 ||
		written != 20 {
		t.Errorf("blkio: got %d and %d, want 6 and 20", read, written)
	}
	if got := value([]byte("oom_kill_disable 0\nunder_oom 1\noom_kill 3\n"), "oom_kill"); got != 3 {
		t.Errorf("oom_kill: got %d, want 3", got)
	}
	if got := parsePIDs([]byte("1\n0\n22\n3\n"), 22); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("processes: got %v, want 1 and 3, without this one", got)
	}
}

func FuzzTheKernelsTexts(f *testing.F) {
	f.Add("some avg10=0.12 total=1500", "1\n22\n")
	f.Add("8:0 rbytes=1 wbytes=-20", "max")
	f.Fuzz(func(t *testing.T, first, second string) {
		a, b := []byte(first), []byte(second)
		for _, text := range [][]byte{a, b} {
			parsePressure(text)
			parseIO(text)
			parseLegacyIO(text)
			for _, pid := range parsePIDs(text, 5) {
				if pid <= 0 || pid == 5 {
					t.Errorf("process %d, which must not be signalled", pid)
				}
			}
		}
	})
}

func TestOnlyCgroupsOfOwnersAreSwept(t *testing.T) {
	t.Parallel()
	precious := filepath.Join(t.TempDir(), namePrefix+"precious")
	if err := os.Mkdir(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/sys/fs/cgroup", "", precious} {
		if err := sweep(t.Context(), []string{path}); err == nil {
			t.Errorf("sweep(%q): got no error", path)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestDescendantsAreFoundByParentGroupSessionAndMemory(t *testing.T) {
	t.Parallel()
	table := map[int]procfs.Stat{
		1:  {Born: 1},
		5:  {Parent: 1, Group: 5, Session: 5, Born: 2},   // the owner
		10: {Parent: 5, Group: 10, Session: 5, Born: 10}, // a child
		11: {Parent: 10, Group: 11, Session: 11, Born: 11},
		12: {Parent: 1, Group: 10, Session: 5, Born: 12},  // its parent has ended
		13: {Parent: 1, Group: 13, Session: 13, Born: 13}, // has left, and was seen before
		14: {Parent: 1, Group: 14, Session: 14, Born: 99}, // has the number of one that was seen before
		15: {Parent: 5, Group: 15, Session: 5, Born: 15},  // another child
	}
	before := map[int]procfs.Stat{13: {Born: 13}, 14: {Born: 14}}
	var got []int
	for pid := range descendants(table, map[int]int64{10: 10}, before, 5) {
		got = append(got, pid)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]int{10, 11, 12, 13}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestInModeNoneUsageIsSummedAndTheTreeIsKilled(t *testing.T) {
	t.Parallel()
	e, err := Open(Options{StateDir: t.TempDir(), Mode: None})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := e.Group("shell")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "sleep 100 & (while :; do :; done) & wait")
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Minute)
	var u Usage
	for u.Processes < 3 || u.CPU == 0 {
		if u, err = g.Usage(); err != nil || time.Now().After(deadline) {
			t.Fatalf("usage: got %+v, %v, want three processes and some CPU", u, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if u.Memory == 0 || u.PeakWorkingSet < u.Memory {
		t.Errorf("memory: got %s, peak %s", u.Memory, u.PeakWorkingSet)
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the shell ended by itself, want it killed")
	}
	after, err := g.Usage()
	if err != nil || after.Processes != 0 || after.CPU < u.CPU {
		t.Errorf("usage afterwards: got %+v, %v, want no process, and no less CPU than %s", after, err, u.CPU)
	}
}
