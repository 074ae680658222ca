package sizespicture_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/cmd/internal/sizespicture"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
)

func point(at, actual float64) hindsight.Point {
	return hindsight.Point{
		At: at, Venue: predictor.Pool, Actual: actual, Granted: 1.5 * actual,
		Predicted: predictor.Interval{Low: 0.9 * actual, Mid: actual, High: 1.1 * actual},
	}
}

func memory(feature string, points ...hindsight.Point) []hindsight.Stage {
	return []hindsight.Stage{{
		Stage: "fit", Attempts: len(points),
		Memory: hindsight.Comparison{Feature: feature, Attempts: len(points), Predicted: len(points), Points: points},
	}}
}

// count is how many elements of the picture have what.
func count(picture []byte, what string) int { return bytes.Count(picture, []byte(what)) }

func TestThePictureHasAllThatIsKnownOfAnAttempt(t *testing.T) {
	t.Parallel()
	killed, function := point(3, 3<<20), point(2, 2<<20)
	killed.Killed, function.Venue = true, predictor.Function
	got := sizespicture.Draw("digits-1", memory("rows", point(1, 1<<20), function, killed), 1000)
	legend := sizespicture.Draw("digits-1", nil, 1000)
	for _, class := range []string{`class="pool"`, `class="function"`, `class="killed"`} {
		if more := count(got, class) - count(legend, class); more != 1 {
			t.Errorf("%d marks are %s, want 1", more, class)
		}
	}
	for _, want := range []string{
		"rows", "peak memory", "run time", "3 MiB", "digits-1", "prefers-color-scheme:dark",
		"rows: 1; took 1 MiB at the pool; predicted 1 MiB (922 KiB to 1.1 MiB); granted 1.5 MiB", "rows: 3; killed at 3 MiB",
	} {
		if count(got, want) == 0 {
			t.Errorf("%q is not in the picture: %s", want, titles.FindAll(got, -1))
		}
	}
	for _, never := range []string{"<script", "http://", "url(", "href"} {
		if text := bytes.ReplaceAll(got, []byte("http://www.w3.org/2000/svg"), nil); count(text, never) > 0 {
			t.Errorf("the picture has %q", never)
		}
	}
	if count(legend, "No attempt has ended yet") != 1 {
		t.Error("a run without attempts does not say so")
	}
}

func TestAxesAreLogarithmicWhereValuesAreWideApart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		feature string
		largest float64
		want    string
	}{
		"near each other":        {"rows", 10, ">rows<"},
		"wide apart":             {"rows", 1000, ">rows (both axes logarithmic)<"},
		"counted, never so":      {"", 1000, ">attempts in the order in which they ended (upright axis logarithmic)<"},
		"bytes":                  {"input_bytes", 1000, ">bytes of input (both axes logarithmic)<"},
		"nothing and wide apart": {"rows", 0, ">rows<"},
	} {
		points := []hindsight.Point{point(1, 1<<20), point(max(1, test.largest), max(1, test.largest)*(1<<20))}
		if got := sizespicture.Draw("r", memory(test.feature, points...), 1000); count(got, test.want) != 1 {
			t.Errorf("%s: %s is not below the picture", name, test.want)
		}
	}
}

func TestTicksOfCountsAreWhole(t *testing.T) {
	t.Parallel()
	got := sizespicture.Draw("r", memory("rows", point(5, 5<<20), point(6, 6<<20)), 1000)
	if count(got, ">5<") != 1 || count(got, ">6<") != 1 || count(got, ">5.2<")+count(got, ">5.5<") > 0 {
		t.Errorf("of 5 and 6 rows, the ticks are %s", titles.FindAll(got, -1))
	}
	got = sizespicture.Draw("r", memory("learning_rate", point(0.1, 5<<20), point(0.6, 6<<20)), 1000)
	if count(got, ">0.2<") != 1 {
		t.Errorf("of 0.1 to 0.6, the ticks are %s", titles.FindAll(got, -1))
	}
}

// What is highest is not drawn against the head of its panel.
func TestThereIsRoomAboveTheHighestAttempt(t *testing.T) {
	t.Parallel()
	head := regexp.MustCompile(`y="([0-9.]+)"[^>]*>peak memory<`)
	granted := regexp.MustCompile(`class="granted" d="M[0-9.]+ ([0-9.]+)h[0-9.]+M[0-9.]+ ([0-9.]+)h`)
	for name, largest := range map[string]float64{"even": 6 << 20, "logarithmic": 6 << 30} {
		got := sizespicture.Draw("r", memory("rows", point(5, 5<<20), point(6, largest)), 1000)
		from, highest := head.FindSubmatch(got), granted.FindSubmatch(got)
		if from == nil || highest == nil {
			t.Fatalf("%s: there is no panel:\n%s", name, got)
		}
		top, _ := strconv.ParseFloat(string(from[1]), 64)
		at, _ := strconv.ParseFloat(string(highest[2]), 64)
		if room := at - top; room < 24 {
			t.Errorf("%s: the highest is %g px below the head, want 24 at least", name, room)
		}
	}
}

// number is a coordinate or a length in the picture.
var number = regexp.MustCompile(`\s(?:[xy][12]?|c[xy]|width|height|r)="([^"]*)"`)

// titles are the numbers that are told where the pointer rests, and names.
var titles = regexp.MustCompile(`<t(itle|ext)[^>]*>[^<]*</t`)

// TestAnyRunHasAPicture draws what may come of any numbers and names: it is XML, of the width that was asked for, and
// no coordinate is outside of it.
func TestAnyRunHasAPicture(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.SampledFrom([]float64{0, 1, 1e-9, 1e18, math.MaxFloat64, math.Inf(1), math.NaN(), -5}),
			rapid.Float64Range(0, 1e12))
		var points []hindsight.Point
		for range rapid.IntRange(0, 6).Draw(t, "points") {
			points = append(points, hindsight.Point{
				At: value.Draw(t, "at"), Actual: value.Draw(t, "actual"), Granted: value.Draw(t, "granted"),
				Predicted: predictor.Interval{Low: value.Draw(t, "low"), Mid: value.Draw(t, "mid"), High: value.Draw(t, "high")},
				Venue:     rapid.SampledFrom([]predictor.Venue{predictor.Pool, predictor.Function, `"<`}).Draw(t, "venue"),
				Killed:    rapid.Bool().Draw(t, "killed"),
			})
		}
		name, width := rapid.String().Draw(t, "name"), rapid.IntRange(-5, 5000).Draw(t, "width")
		stages := memory(name, points...)
		stages[0].Stage, stages[0].Wall = name+"</text><script>", stages[0].Memory
		got := sizespicture.Draw(name, stages, width)
		decoder := xml.NewDecoder(bytes.NewReader(got))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("the picture is no XML: %v\n%s", err, got)
			}
			if element, ok := token.(xml.StartElement); ok && element.Name.Local == "script" {
				t.Fatal("the picture has a script")
			}
		}
		most := float64(min(max(width, sizespicture.LeastWidth), sizespicture.MostWidth))
		for _, found := range number.FindAllStringSubmatch(string(got), -1) {
			at, err := strconv.ParseFloat(found[1], 64)
			if err != nil || !(at >= 0 && at <= max(most, 1000)) {
				t.Fatalf("%s is outside of a picture %g wide:\n%s", found[0], most, got)
			}
		}
		if drawn := titles.ReplaceAll(got, nil); bytes.Contains(drawn, []byte("NaN")) {
			t.Fatalf("the picture has what is no number:\n%s", drawn)
		}
	})
}

func TestPicturesOfManyAttemptsStaySmall(t *testing.T) {
	t.Parallel()
	var points []hindsight.Point
	for i := range 2000 {
		points = append(points, point(float64(i), float64(i+1)))
	}
	stages := memory("rows", points...)
	stages[0].Wall = stages[0].Memory
	if got := len(sizespicture.Draw("r", stages, 1000)); got > 800<<10 {
		t.Errorf("the picture of 2,000 attempts has %d KiB, want at most 800", got>>10)
	}
}

func TestOfManyStagesTheFirstAreDrawn(t *testing.T) {
	t.Parallel()
	var stages []hindsight.Stage
	for range 1000 {
		stages = append(stages, memory("rows", point(1, 2))...)
	}
	picture := sizespicture.Draw("r", stages, 400)
	height := regexp.MustCompile(`height="(\d+)"`).FindSubmatch(picture)
	if height == nil {
		t.Fatalf("the picture has no height: %.300s", picture)
	}
	if pixels, err := strconv.Atoi(string(height[1])); err != nil || pixels > 30_000 ||
		!bytes.Contains(picture, []byte("950 more stages")) {
		t.Errorf("1,000 stages are %s pixels high (%v), want at most 30,000 and a word about the others", height[1], err)
	}
}

// A stage of which several sizes were tried has a third panel: beside the others where there is room, below them
// elsewhere.
func TestSpeedsAreDrawnOverCoresWithTheirCurve(t *testing.T) {
	t.Parallel()
	fit := memory("rows", point(1, 1<<20), point(2, 2<<20))[0]
	fit.Wall = hindsight.Comparison{Attempts: 1, Points: []hindsight.Point{point(1, 3)}}
	plain := fit
	fit.Speed = hindsight.Comparison{
		Feature: hindsight.Cores, Attempts: 2, Predicted: 2, Within: 2,
		Points: []hindsight.Point{{At: 1, Venue: predictor.Pool, Actual: 1}, {At: 2, Venue: predictor.Pool, Actual: 1.9}},
		Curve: []hindsight.CurvePoint{
			{At: 1, Predicted: predictor.Interval{Low: 1, Mid: 1, High: 1}},
			{At: 4, Predicted: predictor.Interval{Low: 2, Mid: 3, High: 3.9}},
		},
	}
	height := regexp.MustCompile(`<svg[^>]* height="([0-9]+)"`)
	for _, width := range []int{400, 800, 1000} {
		got := sizespicture.Draw("r", []hindsight.Stage{fit}, width)
		without := sizespicture.Draw("r", []hindsight.Stage{plain}, width)
		if count(got, `class="area"`) != 1 || count(without, `class="area"`) != 0 || count(got, ">speed<") != 1 ||
			count(got, "cores; 1 is the speed with one") == 0 || count(got, "took 1.9x") != 1 {
			t.Errorf("%d px wide: the speed, its curve or its attempts are not in the picture", width)
		}
		a, b := height.FindSubmatch(got), height.FindSubmatch(without)
		if a == nil || b == nil || (string(a[1]) == string(b[1])) != (width == 1000) {
			t.Errorf("%d px wide: %s px high with the speed and %s without", width, a[1], b[1])
		}
	}
}
