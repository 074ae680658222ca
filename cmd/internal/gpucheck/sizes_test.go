package gpucheck

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	executor "github.com/spillway-ml/spillway/workers/exec"
)

// trialsOf are what steps of language models may do on a GPU, and what that takes.
var trialsOf = map[string]struct {
	trials []trial
	needs  func(trial) quantity.Bytes
}{
	stepLarger:     {largerTrials(), alone(largerMicroBatches)},
	stepPlain:      {plainTrials(), alone(1)},
	stepShared:     {sharedTrials(), beside(mostShared, sharedMicroBatches)},
	stepPeaks:      {peaksTrials(), alone(peaksMicroBatches)},
	stepVariants:   {variantsTrials(), alone(variantsMicroBatches)},
	stepPrecisions: {precisionsTrials(), alone(1)},
}

func TestSizesFollowTheMemoryOfTheGPU(t *testing.T) {
	t.Parallel()
	for name, step := range trialsOf {
		most := 0
		for gibibytes := 3.5; gibibytes <= 141; gibibytes += 0.5 {
			s := Setup{Device: executor.CUDA, Memory: quantity.Bytes(gibibytes * float64(quantity.GiB))}
			got := s.tried(step.trials, step.needs)
			if needs := step.needs(got); needs > s.Memory {
				t.Errorf("%s on a GPU with %s free takes %s", name, s.Memory, needs)
			}
			if got.parameters() < most {
				t.Errorf("%s on a GPU with %s free takes the %s model, and a larger one with less", name, s.Memory, got.name)
			}
			most = got.parameters()
		}
	}
	for gibibytes, want := range map[float64]string{ // of GPUs of 4, 6, 8, 12, 16, 24, 40 and 80 GB, less a little
		3.6: "larger compact/16, plain compact/4, shared small/32",
		5.6: "larger medium/8, plain medium/1, shared compact/16",
		7.4: "larger medium/16, plain medium/4, shared medium/8",
		11:  "larger medium/16, plain medium/8, shared medium/32",
		15:  "larger medium/16, plain medium/8, shared medium/32",
		23:  "larger medium/16, plain large/2, shared medium/32",
		39:  "larger medium/16, plain large/4, shared medium/32",
		79:  "larger medium/16, plain large/8, shared medium/32",
	} {
		s := Setup{Device: executor.CUDA, Memory: quantity.Bytes(gibibytes * float64(quantity.GiB))}
		var got []string
		for _, name := range []string{stepLarger, stepPlain, stepShared} {
			one := s.tried(trialsOf[name].trials, trialsOf[name].needs)
			got = append(got, fmt.Sprintf("%s %s/%d", name, one.name, one.batch))
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("with %v GiB free: %s; want %s", gibibytes, got, want)
		}
	}
	if got := (Setup{Device: executor.CPU}).tried(plainTrials(), alone(1)); got.name != "small" {
		t.Errorf("on CPUs, %s", got.name)
	}
}

func TestLanguageModelsHaveTheSameShapesInPython(t *testing.T) {
	t.Parallel()
	text, err := models.ReadFile("models/language.py")
	if err != nil {
		t.Fatal(err)
	}
	shapes := regexp.MustCompile(`"(\w+)": \((\d+), (\d+), (\d+), (\d+), (\d+)\),`).FindAllStringSubmatch(string(text), -1)
	var got, want []string
	for _, shape := range shapes {
		got = append(got, strings.Join(shape[1:], " "))
	}
	var millions []int
	for _, l := range languages() {
		want = append(want, fmt.Sprintf("%s %d %d %d %d %d", l.name, l.words, l.length, l.width, l.heads, l.layers))
		millions = append(millions, l.parameters()/1e6)
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("in Python: %q; here: %q", got, want)
	}
	if fmt.Sprint(millions) != "[319 91 29 7]" {
		t.Errorf("they have %d million parameters", millions)
	}
}
