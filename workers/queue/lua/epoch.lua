-- EPOCH(candidate): the life of this Redis; the first comer names it. Touches epoch (string).
redis.call('SET', K.epoch, ARGV[2], 'NX')
return redis.call('GET', K.epoch)
