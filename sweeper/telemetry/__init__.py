"""What the machine did while a trial ran: probes, a sampler, and their summaries."""
