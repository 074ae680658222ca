package series_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillway-ml/spillway/cmd/internal/series"
)

func TestCurvesAreGroupedAndPutInOrder(t *testing.T) {
	t.Parallel()
	read := series.Curves(series.CurveColumns{Run: "run", Step: "step", Value: "loss", Kind: "kind", Only: "val"})
	got, err := read(strings.NewReader("kind,step,run,other,loss\n" +
		"val,2,b,,0.5\nval,1,a,,1e26\nval,1,b,,\ntrain,1,b,,9\nval,2,b,,0.25\nval,3,a,x,nan\nval,4,a,x,inf\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []series.Curve{
		{Run: "b", Steps: []float64{1, 2, 2}, Values: []float64{math.NaN(), 0.5, 0.25}},
		{Run: "a", Steps: []float64{1, 3, 4}, Values: []float64{1e26, math.NaN(), math.NaN()}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateNaNs()); diff != "" {
		t.Error(diff)
	}
	whole, err := series.Curves(series.CurveColumns{Step: "s", Value: "v"})(strings.NewReader("v,s\n1,0\n2,1\n"))
	want = []series.Curve{{Steps: []float64{0, 1}, Values: []float64{1, 2}}}
	if diff := cmp.Diff(want, whole); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestBrokenCurvesAreRefusedWithTheirLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "line 1",
		"step\n":                 `no column "loss" among step`,
		"step,loss\n":            "line 2",
		"step,loss\n1,2\n-1,2\n": `line 3: not in the expected format: "-1" is negative`,
		"step,loss\n1,2\nx,2\n":  `line 3: not in the expected format: "x" is not a finite number`,
		"step,loss\n1,y\n":       `line 2: not in the expected format: "y" is not a number`,
		"step,loss\n1\n":         "line 2",
	} {
		_, err := series.Curves(series.CurveColumns{Step: "step", Value: "loss"})(strings.NewReader(text))
		if !errors.Is(err, series.ErrFormat) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestLabelsAreThoseOfTheColumnsThatAreNamed(t *testing.T) {
	t.Parallel()
	got, err := series.LabelsOf("id", "b", "a")(strings.NewReader("a,id,b,c\n1,x,2,3\n4,y,5,6\n"))
	want := []series.Labels{{Name: "x", Values: []string{"2", "1"}}, {Name: "y", Values: []string{"5", "4"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if _, err := series.LabelsOf("id", "z")(strings.NewReader("id\n")); !errors.Is(err, series.ErrFormat) {
		t.Errorf("a column that is absent: %v", err)
	}
}
