// Package devicelist reads the files that list devices and the links between them.
package devicelist

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

// Bounds of a list of devices.
const (
	mostDeviceText = 1 << 20 // bytes
	mostDevices    = 1024
	mostSpeed      = 1e6
	mostPrice      = 1e6 // US dollars per hour
	mostLatency    = time.Minute
)

// List is what a file of devices says.
type List struct {
	// Devices are in the order of the file; an entry with a count stands for as many.
	Devices []partition.Device
	// Links join them; the zero value takes no time.
	Links partition.Links
	// Linked says that links are given.
	Linked bool
	// Classes are where the class of each device stands, in the order of Devices.
	Classes []Mistake
}

// Mistake is something wrong in a file, and where; line and column count from 1.
type Mistake struct {
	Line, Column int
	// Text says what is wrong and what to write instead.
	Text string
}

func mistakeAt(node *yaml.Node, format string, args ...any) Mistake {
	return Mistake{Line: max(node.Line, 1), Column: max(node.Column, 1), Text: fmt.Sprintf(format, args...)}
}

// Parse reads a list of devices and the links between them:
//
//	devices:
//	  - {id: gpu, class: accelerator, count: 4, memory: 16GiB}
//	links:
//	  - {between: all, bandwidth: 10GiB/s, latency: 10us}
//
// All mistakes are returned, in the order of the file; the list is empty then.
func Parse(text []byte) (List, []Mistake) {
	r := reader{groups: map[string][]string{}}
	if root := r.document(text); root != nil {
		r.read(root)
	}
	if len(r.mistakes) > 0 {
		slices.SortStableFunc(r.mistakes, func(a, b Mistake) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return List{}, r.mistakes
	}
	return r.list, nil
}

// For returns the devices that run something of a graph, and which do not, with where each class stands: one list
// serves graphs of several kinds. An entry with a count is told once.
func (l List) For(g graph.Graph) (left List, without []Mistake) {
	classes := map[string]bool{}
	for _, op := range g.Ops {
		for class := range op.Costs {
			classes[class] = true
		}
	}
	names := slices.Sorted(maps.Keys(classes))
	left = List{Links: l.Links, Linked: l.Linked}
	left.Links.Pairs = maps.Clone(l.Links.Pairs)
	for i, device := range l.Devices {
		if classes[device.Class] {
			left.Devices, left.Classes = append(left.Devices, device), append(left.Classes, l.Classes[i])
			continue
		}
		where := l.Classes[i]
		where.Text = fmt.Sprintf("the graph has no cost of class %q; %s", device.Class, nearby(device.Class, names))
		if len(without) == 0 || without[len(without)-1] != where {
			without = append(without, where)
		}
		maps.DeleteFunc(left.Links.Pairs, func(pair [2]string, _ partition.Link) bool {
			return pair[0] == device.ID || pair[1] == device.ID
		})
	}
	return left, without
}

// reader gathers what is wrong while it reads.
type reader struct {
	list     List
	mistakes []Mistake
	// groups are the devices that an ID stands for: one, or those of a count.
	groups map[string][]string
}

func (r *reader) report(node *yaml.Node, format string, args ...any) {
	r.mistakes = append(r.mistakes, mistakeAt(node, format, args...))
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// document returns the root of the one document of the text; nil when there is none that can be read.
func (r *reader) document(text []byte) *yaml.Node {
	top := &yaml.Node{Line: 1, Column: 1}
	if len(text) > mostDeviceText {
		r.report(top, "the file has more than %d bytes; one entry with a count stands for many devices", mostDeviceText)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		r.report(top, "the file is empty; begin with devices: and a list of them")
		return nil
	}
	if err == nil {
		if err = decoder.Decode(&second); err == nil {
			r.report(&second, "a second document begins here; write one list per file")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		message := err.Error()
		if match := yamlLine.FindStringSubmatch(message); match != nil {
			message = message[len(match[0]):]
			top.Line, _ = strconv.Atoi(cmp.Or(match[1], "1"))
		}
		r.report(top, "not YAML: %s; look at the indentation, colons and quotes here and on the line before", message)
		return nil
	}
	root := document.Content[0]
	if alias := firstAlias(root); alias != nil {
		r.report(alias, "this list takes no aliases; write it out, or give a count")
		return nil
	}
	return root
}

// firstAlias returns the first alias at or below a node, nil without one. Few of them can stand for billions of values.
func firstAlias(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node
	}
	for _, inner := range node.Content {
		if found := firstAlias(inner); found != nil {
			return found
		}
	}
	return nil
}

func (r *reader) read(root *yaml.Node) {
	var devices, links *yaml.Node
	if !r.fields(root, "the file", map[string]func(*yaml.Node){
		"devices": func(n *yaml.Node) { devices = n },
		"links":   func(n *yaml.Node) { links = n },
	}) {
		return
	}
	if devices == nil {
		r.report(root, "there are no devices; add devices: with at least one {id: gpu, class: accelerator, memory: 16GiB}")
		return
	}
	for _, item := range r.items(devices, "devices") {
		r.device(item)
	}
	if len(r.list.Devices) == 0 && len(r.mistakes) == 0 {
		r.report(devices, "there is no device; give at least one")
	}
	if links != nil {
		r.links(links)
	}
}

// device reads one entry, which stands for as many devices as its count says.
func (r *reader) device(node *yaml.Node) {
	before := len(r.mistakes)
	device, count := partition.Device{Speed: 1}, 1
	class, given := Mistake{}, map[string]bool{}
	set := func(key string, read func(*yaml.Node)) func(*yaml.Node) {
		return func(n *yaml.Node) { given[key] = true; read(n) }
	}
	if !r.fields(node, "a device", map[string]func(*yaml.Node){
		"id": set("id", func(n *yaml.Node) { device.ID = r.word(n, "id", "gpu") }),
		"class": set("class", func(n *yaml.Node) {
			device.Class = r.word(n, "class", graph.Accelerator)
			class = mistakeAt(n, "%s", device.Class)
		}),
		"count":  func(n *yaml.Node) { count = int(r.number(n, "count", 1, mostDevices, true)) },
		"memory": set("memory", func(n *yaml.Node) { device.Memory = r.memory(n) }),
		"speed":  func(n *yaml.Node) { device.Speed = r.number(n, "speed", 1/mostSpeed, mostSpeed, false) },
		"price": func(n *yaml.Node) {
			device.HourlyPrice, _ = quantity.Dollars(r.number(n, "price", 0, mostPrice, false)) // in range
		},
	}) {
		return
	}
	for _, key := range []string{"id", "class", "memory"} {
		if !given[key] {
			r.report(node, "this device has no %s; give one, as in {id: gpu, class: accelerator, memory: 16GiB}", key)
		}
	}
	if len(r.mistakes) > before {
		return
	}
	device.Host = device.Class == graph.CPU
	ids := []string{device.ID}
	if count > 1 {
		ids = make([]string, count)
		for i := range ids {
			ids[i] = device.ID + "-" + strconv.Itoa(i+1)
		}
	}
	for _, name := range slices.Concat(ids, []string{device.ID}) {
		if r.groups[name] != nil {
			r.report(node, "the ID %q is used twice; give every device its own", name)
			return
		}
	}
	if len(r.list.Devices)+count > mostDevices {
		r.report(node, "there are more than %d devices; give fewer", mostDevices)
		return
	}
	r.groups[device.ID] = ids
	for _, id := range ids {
		r.groups[id] = []string{id}
		device.ID = id
		r.list.Devices = append(r.list.Devices, device)
		r.list.Classes = append(r.list.Classes, class)
	}
}

// links reads what joins the devices.
func (r *reader) links(node *yaml.Node) {
	all, named := false, map[[2]string]bool{}
	for _, item := range r.items(node, "links") {
		r.link(item, &all, named)
	}
	r.list.Linked = true
	if all || len(r.mistakes) > 0 {
		return
	}
	for i, a := range r.list.Devices {
		for _, b := range r.list.Devices[i+1:] {
			if !named[[2]string{a.ID, b.ID}] {
				r.report(node, "nothing links %s and %s; add {between: all, bandwidth: 10GiB/s} for pairs that are not named", a.ID,
					b.ID)
				return
			}
		}
	}
}

func (r *reader) link(node *yaml.Node, all *bool, named map[[2]string]bool) {
	before := len(r.mistakes)
	var link partition.Link
	var between *yaml.Node
	bandwidth := false
	if !r.fields(node, "a link", map[string]func(*yaml.Node){
		"between":   func(n *yaml.Node) { between = n },
		"bandwidth": func(n *yaml.Node) { bandwidth = true; link.BytesPerSecond = r.bandwidth(n) },
		"latency":   func(n *yaml.Node) { link.Latency = r.latency(n) },
	}) {
		return
	}
	if between == nil || !bandwidth {
		r.report(node, "this link is not complete; write {between: [a, b], bandwidth: 10GiB/s, latency: 10us}, or "+
			"between: all")
		return
	}
	if between.Kind == yaml.ScalarNode && between.Value == "all" {
		if *all {
			r.report(between, "there are two links between all; keep one of them")
		}
		*all, r.list.Links.Between = true, link
		return
	}
	ends := r.items(between, "between")
	if len(ends) != 2 {
		if len(r.mistakes) == before {
			r.report(between, "a link has two ends and not %d; write [a, b], or all", len(ends))
		}
		return
	}
	var sides [2][]string
	for i, end := range ends {
		id := r.word(end, "an end of a link", "gpu")
		if sides[i] = r.groups[id]; id != "" && sides[i] == nil {
			r.report(end, "there is no device %q; %s", id, nearby(id, slices.Sorted(maps.Keys(r.groups))))
		}
	}
	if len(r.mistakes) > before {
		return
	}
	r.join(between, sides, link, named)
}

// join links every device of one side with every other one of the other side.
func (r *reader) join(node *yaml.Node, sides [2][]string, link partition.Link, named map[[2]string]bool) {
	if r.list.Links.Pairs == nil {
		r.list.Links.Pairs = map[[2]string]partition.Link{}
	}
	joined := map[[2]string]bool{}
	for _, a := range sides[0] {
		for _, b := range sides[1] {
			if a == b || joined[[2]string{a, b}] {
				continue
			}
			if named[[2]string{a, b}] {
				r.report(node, "%s and %s are linked twice; keep one of the links", a, b)
				return
			}
			for _, pair := range [][2]string{{a, b}, {b, a}} {
				joined[pair], named[pair] = true, true
				r.list.Links.Pairs[pair] = link
			}
		}
	}
	if len(joined) == 0 {
		r.report(node, "this link joins a device with itself; name two")
	}
}
