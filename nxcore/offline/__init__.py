"""Work beside calls: tuning ahead of them, tiles, audits, surveys. May import nn and below."""
