package devicelist

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

func TestACountStandsForManyDevicesAndLinksJoinThemBothWays(t *testing.T) {
	t.Parallel()
	list, mistakes := Parse([]byte(`
devices:
  - {id: gpu, class: accelerator, count: 2, memory: 16GiB, speed: 1.5, price: 2.50}
  - {id: host, class: cpu, memory: 1.5 TiB}
links:
  - {between: all, bandwidth: 1GiB/s}
  - {between: [gpu, gpu], bandwidth: 8Gbit/s, latency: 10us}
  - between: [host, gpu-2]
    bandwidth: 2MB/s
`))
	if mistakes != nil {
		t.Fatal(mistakes)
	}
	devices := []partition.Device{
		{ID: "gpu-1", Class: "accelerator", Speed: 1.5, Memory: 16 * quantity.GiB, HourlyPrice: 5 * quantity.USD / 2},
		{ID: "gpu-2", Class: "accelerator", Speed: 1.5, Memory: 16 * quantity.GiB, HourlyPrice: 5 * quantity.USD / 2},
		{ID: "host", Class: "cpu", Speed: 1, Memory: 3 * quantity.TiB / 2, Host: true},
	}
	if diff := cmp.Diff(devices, list.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	fast, slow := partition.Link{BytesPerSecond: 1e9, Latency: 1e-5}, partition.Link{BytesPerSecond: 2e6}
	links := partition.Links{
		Between: partition.Link{BytesPerSecond: 1 << 30},
		Pairs: map[[2]string]partition.Link{
			{"gpu-1", "gpu-2"}: fast, {"gpu-2", "gpu-1"}: fast, {"host", "gpu-2"}: slow, {"gpu-2", "host"}: slow,
		},
	}
	if diff := cmp.Diff(links, list.Links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}

const oneDevice = "devices: [{id: a, class: cpu, memory: 1GiB}]\n"

func TestEveryMistakeInAListOfDevicesHasItsPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"an empty file":      {"", "1:1: the file is empty"},
		"only a comment":     {"# nothing\n", "1:1: the file is empty"},
		"a null":             {"~\n", `1:1: the file is "~"; give keys and values: devices, links`},
		"not YAML":           {"devices: [\n", "1:1: not YAML"},
		"two documents":      {oneDevice + "---\n" + oneDevice, "2:1: a second document begins here"},
		"an alias":           {"devices: &d []\nlinks: *d\n", "2:8: this list takes no aliases"},
		"a bare list":        {"- {id: a}\n", "1:1: the file is a list"},
		"no devices":         {"links: []\n", "1:1: there are no devices"},
		"a list without any": {"devices: []\n", "1:10: there is no device"},
		"an unknown key": {
			"devices:\n  - {id: a, class: cpu, memroy: 1GiB, memory: 1GiB}\n",
			`2:25: unknown key "memroy" in a device; nearest: memory`,
		},
		"a key that is there twice": {
			"devices:\n  - {id: a, id: b, class: cpu, memory: 1GiB}\n",
			`2:13: key "id" is there twice, first on line 2`,
		},
		"memory of zero": {
			"devices:\n  - {id: a, class: cpu, memory: 0GiB}\n",
			`2:33: memory is "0GiB"; give more than 0`,
		},
		"negative memory":       {"devices:\n  - {id: a, class: cpu, memory: -1GiB}\n", `2:33: memory is "-1GiB"`},
		"memory without a unit": {"devices:\n  - {id: a, class: cpu, memory: 16}\n", `2:33: memory is "16"`},
		"no memory":             {"devices:\n  - {id: a, class: cpu}\n", "2:5: this device has no memory"},
		"no class":              {"devices:\n  - {id: a, memory: 1GiB}\n", "2:5: this device has no class"},
		"an ID of two words": {
			"devices:\n  - {id: a b, class: cpu, memory: 1GiB}\n",
			`2:10: id is "a b"; give a word`,
		},
		"an ID that means all": {"devices:\n  - {id: all, class: cpu, memory: 1GiB}\n", `2:10: id is "all"`},
		"two devices of one ID": {"devices:\n  - {id: a, class: cpu, memory: 1GiB}\n  - {id: a, class: cpu, " +
			"memory: 1GiB}\n", `3:5: the ID "a" is used twice`},
		"an ID that a count has": {"devices:\n  - {id: a, count: 2, class: cpu, memory: 1GiB}\n  - {id: a-2, class: " +
			"cpu, memory: 1GiB}\n", `3:5: the ID "a-2" is used twice`},
		"a count of zero": {
			"devices:\n  - {id: a, count: 0, class: cpu, memory: 1GiB}\n",
			`2:20: count is "0"; give a whole number from 1 to 1024`,
		},
		"half a device": {
			"devices:\n  - {id: a, count: 1.5, class: cpu, memory: 1GiB}\n",
			`2:20: count is "1.5"`,
		},
		"too many devices": {"devices:\n  - {id: a, count: 1024, class: cpu, memory: 1GiB}\n  - {id: b, class: " +
			"cpu, memory: 1GiB}\n", "3:5: there are more than 1024 devices"},
		"a speed of zero": {"devices:\n  - {id: a, speed: 0, class: cpu, memory: 1GiB}\n", `2:20: speed is "0"`},
		"a speed that is no number": {
			"devices:\n  - {id: a, speed: .nan, class: cpu, memory: 1GiB}\n",
			`2:20: speed is ".nan"`,
		},
		"a negative price":       {"devices:\n  - {id: a, price: -1, class: cpu, memory: 1GiB}\n", `2:20: price is "-1"`},
		"links that are no list": {oneDevice + "links: {}\n", "2:8: links is a mapping; give a list"},
		"a link of unknown devices": {
			oneDevice + "links:\n  - {between: [a, bb], bandwidth: 1GiB/s}\n",
			`3:19: there is no device "bb"`,
		},
		"a link of one end": {
			oneDevice + "links:\n  - {between: [a], bandwidth: 1GiB/s}\n",
			"3:15: a link has two ends and not 1",
		},
		"a link with itself": {
			oneDevice + "links:\n  - {between: [a, a], bandwidth: 1GiB/s}\n",
			"3:15: this link joins a device with itself",
		},
		"a link without bandwidth": {oneDevice + "links:\n  - {between: all}\n", "3:5: this link is not complete"},
		"bandwidth without a second": {
			oneDevice + "links:\n  - {between: all, bandwidth: 1GiB}\n",
			`3:31: bandwidth is "1GiB"; give an amount per second`,
		},
		"latency without a unit": {
			oneDevice + "links:\n  - {between: all, bandwidth: 1GiB/s, latency: 10}\n",
			`3:48: latency is "10"`,
		},
		"negative latency": {
			oneDevice + "links:\n  - {between: all, bandwidth: 1GiB/s, latency: -1us}\n",
			`3:48: latency is "-1us"`,
		},
		"all linked twice": {oneDevice + "links:\n  - {between: all, bandwidth: 1GiB/s}\n  - {between: all, " +
			"bandwidth: 1GiB/s}\n", "4:15: there are two links between all"},
		"a pair linked twice": {
			"devices: [{id: a, class: cpu, memory: 1GiB, count: 2}]\nlinks:\n  - {between: [a-1, a-2], bandwidth: 1GiB/s}\n  " +
				"- {between: [a, a], bandwidth: 1GiB/s}\n",
			"4:15: a-1 and a-2 are linked twice",
		},
		"a pair without a link": {
			"devices: [{id: a, class: cpu, memory: 1GiB, count: 3}]\nlinks:\n  - {between: [a-1, a-2], bandwidth: 1GiB/s}\n",
			"3:3: nothing links a-1 and a-3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, mistakes := Parse([]byte(test.text))
			if len(mistakes) != 1 || len(list.Devices) != 0 {
				t.Fatalf("got %d devices and %d mistakes of\n%s\n%v", len(list.Devices), len(mistakes), test.text, mistakes)
			}
			if got := fmt.Sprintf("%d:%d: %s", mistakes[0].Line, mistakes[0].Column, mistakes[0].Text); !strings.HasPrefix(got,
				test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestAllMistakesAreToldInTheOrderOfTheFile(t *testing.T) {
	t.Parallel()
	_, mistakes := Parse([]byte("devices:\n  - {id: a, class: cpu, memory: 0B}\n  - {id: a, memory: 1GiB, speed: " +
		"-1}\nlinks: 3\n"))
	var lines []int
	for _, m := range mistakes {
		lines = append(lines, m.Line)
	}
	if diff := cmp.Diff([]int{2, 3, 3, 4}, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s\n%v", diff, mistakes)
	}
}

// FuzzParseDevices checks that whatever a file holds, it is either refused with places or a list that a problem takes.
func FuzzParseDevices(f *testing.F) {
	f.Add(oneDevice)
	f.Add("devices:\n  - {id: gpu, class: accelerator, count: 4, memory: 16GiB, speed: 1.0, price: 2.50}\nlinks:\n  - " +
		"{between: all, bandwidth: 10GiB/s, latency: 10us}\n")
	f.Add("devices: &a [*a]\n")
	f.Add("a: &a [1]\n---\n!!binary x: {? [a] : b}")
	f.Fuzz(func(t *testing.T, text string) {
		list, mistakes := Parse([]byte(text))
		if len(mistakes) > 0 {
			for _, m := range mistakes {
				if m.Line < 1 || m.Column < 1 || m.Text == "" {
					t.Fatalf("a mistake without a place: %+v", m)
				}
			}
			return
		}
		op := graph.Op{ID: "x", Costs: map[string]graph.Cost{}}
		p := partition.Problem{Graph: graph.Graph{Ops: []graph.Op{op}}, Devices: list.Devices, Links: list.Links}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, d := range list.Devices {
			if d.Memory <= 0 || d.Speed <= 0 {
				t.Fatalf("a device of no memory or speed: %+v", d)
			}
		}
	})
}

func TestDevicesThatAGraphHasNoCostsForAreLeftOutWithTheirLinks(t *testing.T) {
	t.Parallel()
	list, mistakes := Parse([]byte(`
devices:
  - {id: a, class: cpu, memory: 1GiB}
  - {id: b, class: acelerator, count: 2, memory: 1GiB}
  - {id: c, class: cpu, memory: 1GiB}
links:
  - {between: all, bandwidth: 1GiB/s}
  - {between: [a, b], bandwidth: 2GiB/s}
  - {between: [a, c], bandwidth: 3GiB/s}
`))
	if mistakes != nil {
		t.Fatal(mistakes)
	}
	costs := map[string]graph.Cost{graph.CPU: {Forward: 1}, graph.Accelerator: {Forward: 1}}
	left, without := list.For(graph.Graph{Ops: []graph.Op{{ID: "x", Costs: costs}}})
	if len(left.Devices) != 2 || left.Devices[0].ID != "a" || left.Devices[1].ID != "c" || len(left.Classes) != 2 {
		t.Errorf("left are %+v", left)
	}
	wanted := []Mistake{{4, 20, `the graph has no cost of class "acelerator"; nearest: accelerator`}}
	if diff := cmp.Diff(wanted, without); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	if len(left.Links.Pairs) != 2 || len(list.Links.Pairs) != 6 {
		t.Errorf("the pairs are %v of %v", left.Links.Pairs, list.Links.Pairs)
	}
}
