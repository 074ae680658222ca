package digits

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSampleImagesAreComplete(t *testing.T) {
	t.Parallel()
	m, err := sampleImages()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Labels) != 1797 || m.Width != 8 || m.Height != 8 || slices.Max(m.Pixels) != 16 {
		t.Errorf("got %d images of %dx%d with ink up to %d, want 1797 of 8x8 up to 16", len(m.Labels), m.Width, m.Height,
			slices.Max(m.Pixels))
	}
	counts := make([]int, classes)
	for _, label := range m.Labels {
		counts[label]++
	}
	if diff := cmp.Diff([]int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, counts); diff != "" {
		t.Errorf("images of each digit (-want +got):\n%s", diff)
	}
}

func TestReadCSVRefuses(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("0,", 64)
	for _, test := range []struct{ name, text, want string }{
		{"a pixel over full ink", strings.Repeat("17,", 64) + "1\n", `line 1, field 1 is "17"`},
		{"a negative pixel", "-1," + line[2:] + "1\n", `field 1 is "-1"`},
		{"a label that is no digit", line + "1\n" + line + "10\n", `line 2, field 65 is "10"`},
		{"a line that is too short", line[2:] + "1\n", "wrong number of fields"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if _, err := readCSV(strings.NewReader(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}

func TestSideFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ width, height, want int }{
		{1, 1, 8}, {8, 8, 8}, {9, 3, 12}, {16, 12, 16}, {27, 28, 28}, {28, 28, 28}, {29, 29, 28}, {256, 1, 28},
	} {
		if got := sideFor(test.width, test.height); got != test.want {
			t.Errorf("sideFor(%d, %d) = %d, want %d", test.width, test.height, got, test.want)
		}
	}
}

func TestSquareKeepsAnImageThatFits(t *testing.T) {
	t.Parallel()
	got := square([]byte{16, 8, 0, 4}, 2, 2, 16, 8)
	want := make([]byte, 64)
	want[3*8+3], want[3*8+4], want[4*8+4] = 255, 128, 64
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestShrinkKeepsTheMeanInk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		width, height := rapid.IntRange(1, 60).Draw(t, "width"), rapid.IntRange(1, 60).Draw(t, "height")
		w, h := rapid.IntRange(1, width).Draw(t, "w"), rapid.IntRange(1, height).Draw(t, "h")
		values := make([]float64, width*height)
		total := 0.0
		for i := range values {
			values[i] = float64(i*7919%256) / 255
			total += values[i]
		}
		got := 0.0
		for _, v := range shrink(values, width, height, w, h) {
			got += v / float64(w*h)
		}
		if want := total / float64(len(values)); math.Abs(got-want) > 1e-9 {
			t.Fatalf("mean %g after %dx%d became %dx%d, want %g", got, width, height, w, h, want)
		}
	})
}

func TestPrepareKeepsEveryImageWithItsLabel(t *testing.T) {
	t.Parallel()
	m := someImages(t, 200)
	d, err := prepare(m, 5)
	if err != nil {
		t.Fatal(err)
	}
	count := func(labels, pixels []byte) map[string]int {
		seen := map[string]int{}
		for i, label := range labels {
			seen[string(append([]byte{label}, pixels[i*64:(i+1)*64]...))]++
		}
		return seen
	}
	scaled := make([]byte, len(m.Pixels))
	for i, p := range m.Pixels {
		scaled[i] = byte(math.Round(float64(p) * 255 / 16))
	}
	if diff := cmp.Diff(count(m.Labels, scaled), count(d.Labels, d.Pixels)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if slices.Equal(m.Labels, d.Labels) {
		t.Error("the images were not shuffled")
	}
}

func TestPrepareDependsOnTheSeedOnly(t *testing.T) {
	t.Parallel()
	m := someImages(t, 100)
	order := func(seed int64) string {
		d, err := prepare(m, seed)
		if err != nil {
			t.Fatal(err)
		}
		return string(d.Pixels)
	}
	first := order(3)
	if again := order(3); again != first {
		t.Error("the same seed gave two orders")
	}
	if other := order(4); other == first {
		t.Error("two seeds gave the same order")
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		images Images
		want   string
	}{
		{
			"too few images to split",
			Images{Width: 1, Height: 1, Max: 1, Pixels: make([]byte, 19), Labels: make([]byte, 19)},
			"give at least 20",
		},
		{
			"pixels that are missing",
			Images{Width: 2, Height: 2, Max: 1, Pixels: make([]byte, 79), Labels: make([]byte, 20)},
			"need 80 pixels, not 79",
		},
		{"images that are too wide", Images{Width: 257, Height: 1, Max: 1}, "257x1"},
		{"images without ink", Images{Width: 1, Height: 1}, "full ink is 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if _, err := prepare(test.images, 1); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}

func TestSplitUsesEveryImageOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(fewestImages, 100_000).Draw(t, "count")
		train, test := split(count)
		if train.First != 0 || train.Count != test.First || test.First+test.Count != count || test.Count != count/10 {
			t.Fatalf("split(%d) = %v, %v", count, train, test)
		}
	})
}

func TestTheFirstScoringViewIsTheImageItself(t *testing.T) {
	t.Parallel()
	image := someData(t, fewestImages).image(0)
	want, got := make([]float32, 64), make([]float32, 64)
	plain(image, want)
	views := scoringViews(8, DefaultViews)
	views[0].apply(image, 8, got)
	if diff := cmp.Diff(want, got); diff != "" || len(views) != 189 {
		t.Errorf("%d views, want 189 (-want +got):\n%s", len(views), diff)
	}
}

func TestAViewMovesInkWhereItSays(t *testing.T) {
	t.Parallel()
	image := make([]byte, 64)
	image[3*8+2] = 255
	for _, test := range []struct {
		name string
		view view
		want int // index of the ink
	}{
		{"right and down", view{zoom: 1, dx: 2, dy: 1}, 4*8 + 4},
		{"turned by a quarter", view{zoom: 1, angle: math.Pi / 2}, 2*8 + 4},
		{"turned by a half", view{zoom: 1, angle: math.Pi}, 4*8 + 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			out := make([]float32, 64)
			test.view.apply(image, 8, out)
			if got := slices.Index(out, slices.Max(out)); got != test.want || out[got] < 0.999 {
				t.Errorf("most ink (%g) at %d, want it at %d", out[got], got, test.want)
			}
		})
	}
}

func FuzzDecoders(f *testing.F) {
	images, _ := Images{Width: 1, Height: 2, Max: 3, Pixels: []byte{1, 2}, Labels: []byte{9}}.MarshalBinary()
	dataset, _ := Dataset{Side: 8, Pixels: make([]byte, 64), Labels: []byte{1}}.MarshalBinary()
	f.Add(images)
	f.Add(dataset)
	f.Add([]byte("DGW1\x08\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("DGT2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m Images
		if err := m.UnmarshalBinary(data); err == nil {
			again(t, data, m)
		}
		var d Dataset
		if err := d.UnmarshalBinary(data); err == nil {
			again(t, data, d)
		}
		var w Weights
		if err := w.UnmarshalBinary(data); err == nil {
			again(t, data, w)
		}
		var p progress
		if err := p.UnmarshalBinary(data); err == nil {
			again(t, data, p)
		}
	})
}

// again checks that what was decoded encodes to the same bytes.
func again(t *testing.T, data []byte, value interface{ MarshalBinary() ([]byte, error) }) {
	t.Helper()
	if got, err := value.MarshalBinary(); err != nil || string(got) != string(data) {
		t.Errorf("decoded %T encodes to %d other bytes, error %v", value, len(got), err)
	}
}
