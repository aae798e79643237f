"""Linear layers, alone and with their neighbours: norm before, bias, residual or gate after."""
