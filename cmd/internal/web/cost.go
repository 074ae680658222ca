package web

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Price is one row of the catalogue as GET /api/v1/prices answers it.
type Price struct {
	Kind     pricing.Kind   `json:"kind"`
	Provider string         `json:"provider"`
	Region   string         `json:"region"`
	Name     string         `json:"name"`
	Capacity quantity.Size  `json:"capacity"`
	Price    quantity.Money `json:"price_picodollars"`
	Unit     pricing.Unit   `json:"unit"`
	// Dated is the day on which the source stated the price; ValidUntil the last day on which it holds, zero where nobody
	// said.
	Dated      time.Time `json:"dated"`
	ValidUntil time.Time `json:"valid_until,omitzero"`
	Source     string    `json:"source"`
}

// Row is the row of the catalogue.
func (p Price) Row() pricing.Row {
	return pricing.Row{
		Kind: p.Kind, Provider: p.Provider, Region: p.Region, Name: p.Name, Capacity: p.Capacity, Price: p.Price,
		Unit:  p.Unit,
		Dated: p.Dated, ValidUntil: p.ValidUntil, Source: p.Source,
	}
}

func priceOf(row pricing.Row) Price {
	return Price{
		Kind: row.Kind, Provider: row.Provider, Region: row.Region, Name: row.Name, Capacity: row.Capacity, Price: row.Price,
		Unit:  row.Unit,
		Dated: row.Dated, ValidUntil: row.ValidUntil, Source: row.Source,
	}
}

type pricesAnswer struct {
	Prices []Price `json:"prices"`
}

func (s *Server) prices(r *http.Request) (pricesAnswer, error) {
	rows, err := s.engine.Prices(r.Context())
	answer := pricesAnswer{make([]Price, len(rows))}
	for i, row := range rows {
		answer.Prices[i] = priceOf(row)
	}
	return answer, err
}

// The parameters of GET /api/v1/cost.
var (
	byParameter = choice("by", "what the bill is divided by",
		ledger.ByStage, ledger.ByPipeline, ledger.ByTeam, ledger.ByRun, ledger.ByVenue, ledger.ByHost).or(ledger.ByStage)
	sinceParameter  = moment("since", "the beginning of what is billed; the beginning of all that is known when left out")
	untilParameter  = moment("until", "the end of what is billed; now when left out")
	teamParameter   = words("team", "keeps only what is of this team; default is who has none")
	formatParameter = choice("format", "how the bill is written", "json", "csv").or("json")
)

// cost answers GET /api/v1/cost?by=&since=&until=&run=&pipeline=&format=.
func (s *Server) cost(w http.ResponseWriter, r *http.Request) {
	query, err := s.billQuery(r, time.Now())
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	format, err := formatParameter.text(r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	bill, err := s.engine.Bill(r.Context(), query)
	switch {
	case err != nil:
		s.refuse(w, r, err)
	case format == "csv":
		header := w.Header()
		header.Set("Content-Type", "text/csv; charset=utf-8")
		header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "spillway-cost-by-"+string(query.By)+".csv"))
		header.Set("Cache-Control", "no-store")
		if err := bill.WriteCSV(w); err != nil && r.Context().Err() == nil {
			s.logger.DebugContext(r.Context(), "bill not answered to its end", "error", err)
		}
	default:
		bill.Lines = notNil(bill.Lines)
		s.write(w, r, http.StatusOK, bill)
	}
}

// billQuery reads what the bill is about; now is the time that durations go back from.
func (s *Server) billQuery(r *http.Request, now time.Time) (query ledger.BillQuery, err error) {
	by, err := byParameter.text(r)
	if err != nil {
		return query, err
	}
	query = ledger.BillQuery{By: ledger.Dimension(by), Run: r.FormValue("run"), Pipeline: r.FormValue("pipeline")}
	if query.Team = r.FormValue("team"); query.Team != predictor.DefaultTeam {
		if err := access.CheckTeam(query.Team); err != nil {
			return query, Invalid("`spillway teams` lists them", "%v", err)
		}
	}
	if query.Since, err = sinceParameter.moment(r, now); err != nil {
		return query, err
	}
	if query.Until, err = untilParameter.moment(r, now); err != nil {
		return query, err
	}
	if !query.Until.IsZero() && query.Since.After(query.Until) {
		return query, Invalid("exchange them", "since %s is after until %s", query.Since.Format(time.RFC3339),
			query.Until.Format(time.RFC3339))
	}
	if query.Run != "" {
		if _, err := s.knownRun(r.Context(), query.Run); err != nil {
			return query, err
		}
	}
	if query.Pipeline != "" {
		return query, s.knownPipeline(r.Context(), query.Pipeline)
	}
	return query, nil
}
