"""How results are told: terminal tables, pictures, report.html, report.md and card.json. No engine is needed."""
